#!/bin/bash
# nfs_guest.sh COMMAND...: the first process of a guest whose root is the host's, read-only. It starts an NFS
# server, runs the command, says with which status it ended, and ends the guest. See nfs_guest.py.
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/var/lib/nfs/tmp
# The guest's kernel does not keep the wide registers apart for the threads of a process: nobody is to use them.
export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW

mount -t proc proc /proc
mount -t sysfs sys /sys
for place in /run /var/lib/nfs; do mount -t tmpfs -o mode=755 tmpfs "$place"; done
mkdir -p /run/{rpcbind,rpc_pipefs,lib} /var/lib/nfs/{export,sm,sm.bak,tmp,v4recovery}
touch /var/lib/nfs/{etab,rmtab,state}
hostname guest
ip link set lo up

ln -s /usr/lib/uml/modules /run/lib/modules
modprobe --dirname /run --all nfsd nfsv3 nfsv4
mount -t nfsd nfsd /proc/fs/nfsd
# Nobody has locks from before: the least time of grace to get them back, which is 3 seconds for lockd, none for nfsd.
echo 3 >/proc/sys/fs/nfs/nlm_timeout
echo 3 >/proc/sys/fs/nfs/nlm_grace_period
rpcbind
chown statd /var/lib/nfs/{sm,sm.bak,state}
rpc.statd --no-notify
exportfs -o rw,fsid=0,no_root_squash,insecure,no_subtree_check '*:/var/lib/nfs/export'
rpc.mountd
rpc.nfsd 4
echo Y >/proc/fs/nfsd/v4_end_grace

cd "$TMPDIR" || exit
"$@"
echo "nfs_guest ended: $?"
echo o >/proc/sysrq-trigger
sleep 10

#!/bin/bash
# node.sh NAME FOLDER: makes the fake machine NAME of the namespaces that it was started in, says `ready`, and stays as
# the machine's pid 1. FOLDER has hosts and NAME.boot_id. The machine `head` keeps this machine's /tmp and processes.
set -euo pipefail
name=$1 folder=$2
hostname "$name"
mount --bind "$folder/hosts" /etc/hosts
ip link set lo up
if [ "$name" = head ]; then
    ip link add br0 type bridge
    ip link set br0 up
    ip addr add 198.51.100.254/24 dev br0
    echo ready
    exec sleep infinity
fi
mount -t proc proc /proc
mount -t tmpfs -o mode=1777,size=512m tmp /tmp
mount -t tmpfs -o mode=1777,size=512m tmp /var/tmp
mount -t tmpfs -o mode=1777,size=256m shm /dev/shm
mount --bind "$folder/$name.boot_id" /proc/sys/kernel/random/boot_id
echo ready
exec >/dev/null
sleep infinity &
while :; do wait; done # as pid 1, bash reaps orphans

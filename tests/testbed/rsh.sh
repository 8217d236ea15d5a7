#!/bin/bash
# rsh.sh [-options] NAME COMMAND...: stands in for ssh where mpirun on `head` starts its daemons on the fake machines.
while [[ ${1:-} == -* ]]; do
    case $1 in -l | -p | -o | -F | -i) shift ;; esac
    shift
done
name=${1#*@}
shift
exec nsenter --target "$(cat "$TESTBED_NODES/$name.pid")" --mount --uts --ipc --net --pid --time -- env --chdir=/ sh -c "$*"

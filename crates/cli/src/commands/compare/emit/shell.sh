#!/bin/sh
# Written by `hadal compare --emit shell`. Start it on every machine that shares the folder, as often as you like. Every
# process makes runs that no other one has, goes on with those that were left, and ends when none is left. The table, at
# any time:
#   @LOOK@
cd @HERE@ || exit 2

all=
# The runs are saved.
trap 'kill -TERM $all 2>/dev/null' TERM INT HUP

task=0
while [ "$task" -lt @TASKS@ ]; do
    @COMMAND@ </dev/null &
    all="$all $!"
    task=$((task + 1))
done

code=0
for work in $all; do
    while wait "$work"; ended=$?; kill -0 "$work" 2>/dev/null; do :; done
    [ "$ended" = 0 ] || code=$ended
done
exit "$code"

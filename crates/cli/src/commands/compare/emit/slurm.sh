#!/bin/bash
# Written by `hadal compare --emit slurm`. Submit it with sbatch, as often as you like. Every task makes runs that no
# other task has, goes on with those that were left, and ends when none is left. The table, at any time:
#   @LOOK@
#SBATCH --job-name=hadal-@NAME@
#SBATCH --array=1-@TASKS@
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=@CPUS@
@TIME@#SBATCH --output=hadal-@NAME@-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@180
# @MEMORY@:
# add lines here, or options behind sbatch.

cd @HERE@ || exit 2

work=
limit=0
stop() { [ -z "$work" ] || kill -TERM "$work" 2>/dev/null; }
# Three minutes before the time limit: the runs are saved, and the task takes its place in the queue again.
trap 'limit=1; stop' USR1
# Preemption, or scancel: the runs are saved, and Slurm knows what to do next.
trap stop TERM INT

step=()
if command -v srun >/dev/null; then
    # Steps do not inherit the number of cores.
    step=(srun --ntasks=1 "--cpus-per-task=${SLURM_CPUS_PER_TASK:-@CPUS@}")
fi
"${step[@]}" @COMMAND@ </dev/null &
work=$!
# A signal interrupts the waiting.
while wait "$work"; code=$?; kill -0 "$work" 2>/dev/null; do :; done

if [ "$limit" = 1 ] && [ "$code" != 0 ]; then
    scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
exit "$code"

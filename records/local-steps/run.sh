#!/bin/bash
# Rounds of local steps against steps of all ranks, at equal tokens: OUT gets a run for each H and seed, and a table at the end.
#   records/local-steps/run.sh OUT [HADAL]
set -eu
out=$1 hadal=${2:-hadal} here=$(dirname "$0")
export RAYON_NUM_THREADS=1
mkdir -p "$out"
for seed in 0 1 2; do
  for policy in prenorm mgr; do
    for h in 0 5 20 60; do
      run=$out/$policy-$h-$seed
      [ -e "$run/outcome.json" ] || mpirun --oversubscribe -n 2 "$hadal" train "$here/run.toml" --residual $policy \
        --seed $seed --set ranks.local_steps=$h --out "$run" >"$run.log" 2>&1
    done
  done
done
# Means of parameters, without an outer optimiser.
for seed in 0 1 2; do
  for h in 5 20 60; do
    run=$out/mean-$h-$seed
    [ -e "$run/outcome.json" ] || mpirun --oversubscribe -n 2 "$hadal" train "$here/run.toml" --seed $seed \
      --set ranks.local_steps=$h --set ranks.outer_rate=1 --set ranks.outer_momentum=0 --out "$run" >"$run.log" 2>&1
  done
done
for policy in prenorm mgr mean; do
  for h in 0 5 20 60; do
    for seed in 0 1 2; do
      [ -e "$out/$policy-$h-$seed" ] || continue
      grep -h '"kind":"eval"' "$out/$policy-$h-$seed/metrics.jsonl" | tail -1 | sed "s/.*\"loss\":\([0-9.]*\).*/$policy $h $seed \1/"
    done
  done
done

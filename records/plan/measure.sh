#!/bin/sh
# Memory as planned and as measured: measure.sh [HADAL]. Prints lines of a table; each run takes some seconds and up to 1.4 GB.
set -eu
hadal=${1:-target/release/hadal}
here=$(dirname "$0")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
row() {
    size=$1 policy=$2
    shift 2
    rm -rf "$out/run"
    "$hadal" train "$here/$size.toml" --residual "$policy" --out "$out/run" "$@" >/dev/null 2>&1
    "$hadal" plan "$here/$size.toml" --residual "$policy" --flops 1T --json "$@" >"$out/plan.json"
    python3 - "$size" "$policy $*" "$out" <<'PYTHON'
import json, sys
size, policy, out = sys.argv[1:]
measured = json.load(open(f"{out}/run/outcome.json"))["peak_rss_mb"]
planned = json.load(open(f"{out}/plan.json"))["policies"][0]["total_memory"] / 1e6
print(f"| {size} | {policy.strip()} | {planned:.0f} | {measured:.0f} | {planned / measured - 1:+.1%} |", flush=True)
PYTHON
}
for size in a b; do
    for policy in prenorm mgr attnres hc nag siamese; do row $size $policy; done
done
for size in c d; do
    for policy in prenorm mgr attnres hc gr highway; do row $size $policy; done
done
row a mgr --set memory.inversion=false
row a prenorm --set memory.recompute=true
row a mgr --set memory.recompute=true
row a mgr --set train.accumulate=2
row b mgr --set optimizer.hidden=adamw

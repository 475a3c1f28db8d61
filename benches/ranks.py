#!/usr/bin/env python3
"""What several ranks are worth on one machine: tokens per second of N ranks with one thread each, by those of one rank with
one thread, on the bench model and the same global batch. Turns alternate, so that a slow minute meets both sides.

    cargo build --release --workspace --features hadal/mpi
    benches/ranks.py --ranks 2 --rounds 8

The bits of both sides are compared, too. A figure is worth something on a quiet machine with a core for each rank.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

# The model of docs/performance.md: 8 blocks of 256 with 4 heads, 8 sequences of 256 tokens in a pass.
MODEL = """
[model]
d_model = 256
n_layers = 8
n_heads = 4

[residual]
kind = "{policy}"

[data]
text = "yankee"

[train]
seq_len = 256
batch = {batch}
accumulate = {passes}
steps = {steps}

[optimizer]
hidden = "{rule}"

[eval]
every_steps = 0

[checkpoint]
every_steps = 0
"""

# Open MPI 4 and 5 in a container, as root; other libraries know none of these.
ALLOWED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def run(hadal, config, out, ranks):
    """Metrics of a run's steps, without its evaluations."""
    command = [hadal, "train", str(config), "--out", str(out)]
    if ranks > 1:
        command = ["mpirun", "-n", str(ranks), *command]
    environment = {**os.environ, **ALLOWED, "RAYON_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    lines = [json.loads(line) for line in open(out / "metrics.jsonl")]
    return [line for line in lines if line.get("tokens_per_second")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hadal", default="target/release/hadal")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=14, help="the first four are not counted")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--passes", type=int, help="of a step, on all ranks together [default: one for each rank]")
    parser.add_argument("--policy", default="prenorm")
    parser.add_argument("--rule", default="adamw", choices=["adamw", "muon"])
    asked = parser.parse_args()
    passes = asked.passes or asked.ranks
    ratios, shares = [], []
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        config = place / "bench.toml"
        text = MODEL.format(policy=asked.policy, batch=asked.batch, passes=passes, steps=asked.steps, rule=asked.rule)
        config.write_text(text)
        for round in range(asked.rounds):
            speeds, models = {}, {}
            # Who begins alternates as well.
            for ranks in [1, asked.ranks][:: 1 if round % 2 == 0 else -1]:
                out = place / f"{round}-{ranks}"
                steps = run(asked.hadal, config, out, ranks)[4:]
                speeds[ranks] = statistics.median(step["tokens_per_second"] for step in steps)
                models[ranks] = (out / "model" / "model.safetensors").read_bytes()
                if ranks > 1:
                    shares += [step["communication"] for step in steps if step.get("communication") is not None]
            if models[1] != models[asked.ranks]:
                sys.exit("the models differ")
            ratios.append(speeds[asked.ranks] / speeds[1])
            print(f"round {round + 1}: {speeds[1]:,.0f} and {speeds[asked.ranks]:,.0f} tokens/s, {ratios[-1]:.3f}x", flush=True)
    load = os.getloadavg()[0]
    share = f"{100 * statistics.median(shares):.1f} %" if shares else "not measured"
    print(f"{asked.ranks} ranks by one: {statistics.median(ratios):.3f}x (median of {len(ratios)} rounds, "
          f"{min(ratios):.3f} to {max(ratios):.3f}); communication {share} of a step; load {load:.1f}")


if __name__ == "__main__":
    main()

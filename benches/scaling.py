#!/usr/bin/env python3
"""How cost grows: step time with depth, decode time with context. Draws docs/figures/*.svg.

    PYTHON=... benches/scaling.py [--hadal target/release/hadal] [--steps N] [--residual POLICY]...

Needs matplotlib. Policies of one depth make their steps in turn (`hadal bench`), so that what else the machine does
disturbs all of them alike; different depths are different runs."""

import argparse
import json
import pathlib
import subprocess
import tempfile

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEPTHS = [8, 16, 32, 64]
# Besides every policy that `hadal policies` lists.
VARIANTS = ["attnres:blocks=4"]
MODEL = """[train]
steps = 1
batch = 1
[model]
vocab_size = 512
d_model = 64
n_layers = {depth}
n_heads = 2
"""


def bench(args, *flags):
    command = [args.hadal, "bench", "--json", *flags]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in lines.splitlines()]


def policies(args):
    listed = json.loads(subprocess.run([args.hadal, "policies", "--json"], check=True, capture_output=True).stdout)
    return args.residual or [*(row["config"]["kind"] for row in listed), *VARIANTS]


def by_depth(args):
    names = policies(args)
    times = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for depth in DEPTHS:
            model = pathlib.Path(folder) / f"{depth}.toml"
            model.write_text(MODEL.format(depth=depth))
            flags = [flag for name in names for flag in ("--residual", name)]
            sizes = ["--batch", "4", "--seq", "128", "--steps", str(args.steps)]
            for row in bench(args, "--model", str(model), *sizes, *flags):
                times[row["kind"]].append(row["step_ms_median"])
    return times


def by_context(args):
    flags = ["--decode", "--seq", "2048", "--steps", str(args.steps)]
    rows = bench(args, *flags, "--residual", "prenorm", "--residual", "mgr")
    return {row["kind"]: [(c["context"], c["ms"]) for c in row["contexts"]] for row in rows}


def draw(path, lines, xlabel, ylabel, title):
    figure, axes = plt.subplots(figsize=(7, 4.2))
    for name, points in lines.items():
        axes.plot(*zip(*points), marker="o", label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title, xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hadal", default=str(ROOT / "target/release/hadal"))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--residual", action="append", help="a policy; all of them without it")
    args = parser.parse_args()
    figures = ROOT / "docs/figures"
    figures.mkdir(parents=True, exist_ok=True)

    times = by_depth(args)
    print("ms per step at", DEPTHS, "blocks")
    for policy, row in times.items():
        print(f"{policy:18}", *(f"{ms:9.1f}" for ms in row), f"  64 by 8 blocks: {row[-1] / row[0]:.2f}x")
    lines = {policy: list(zip(DEPTHS, row)) for policy, row in times.items()}
    draw(figures / "depth.svg", lines, "blocks", "ms per training step", "4 x 128 tokens, width 64, two threads")
    extra = {
        policy: [(depth, ms / depth) for depth, ms in zip(DEPTHS, times[policy])]
        for policy in ("prenorm", "mgr", "attnres:blocks=4", "attnres")
        if policy in times
    }
    draw(figures / "depth-per-block.svg", extra, "blocks", "ms per block", "flat is linear; full AttnRes rises")

    contexts = by_context(args)
    print("decode:", json.dumps(contexts))
    draw(figures / "context.svg", contexts, "tokens of context", "ms per token", "decoding, 8 blocks of 256")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Runs hadal and PyTorch (eager and compiled) in turn and prints one table.

    compare.py [--residual POLICY]... [--shape bench|small] [--threads N] [--pairs N] [--json]

--shape is a model with its batch: `bench` is that of `hadal bench`, `small` that of `hadal compare`
without a suite. --width, --layers, --heads, --vocab, --qk-norm, --batch and --seq change one of them.
hadal is $HADAL, or target/release/hadal of this repository. PyTorch runs in $PYTHON, or in the python
that runs this script; only that one needs torch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
WARM_UP = 3
# A turn is about a second on each side.
SHAPES = {
    "bench": {"width": 256, "layers": 8, "heads": 4, "vocab": 512, "qk_norm": False,
              "batch": 8, "seq": 256, "turn": 2},
    "small": {"width": 64, "layers": 12, "heads": 4, "vocab": 257, "qk_norm": True,
              "batch": 8, "seq": 128, "turn": 10},
}
# The threads of a side may spin for a moment after its last step; the next side shall not feel it.
PAUSE = 0.2
INSTALL = """\
error: {python} has no torch. Install it with one of
  {python} -m pip install torch --index-url https://download.pytorch.org/whl/cpu
  {python} -m pip install torch
or name another interpreter: PYTHON=/path/to/python {script}"""


class Worker:
    """A process that makes a step whenever it is asked for one."""

    def __init__(self, name, command):
        self.name, self.turns = name, []
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ready = self.hear()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"error: {self.name} ended with status {self.process.wait()}")
        return json.loads(line)

    def ask(self, request):
        try:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # hear() says how it ended.
        return self.hear()

    def turn(self, steps):
        """The median time of a few steps in a row."""
        self.turns.append(statistics.median(self.ask("step")["step_ms"] for _ in range(steps)))
        time.sleep(PAUSE)

    def finish(self):
        self.closing = self.ask("end")
        self.process.stdin.close()
        self.process.wait()


def commands(residual, args, model):
    """What to start for each side; `model` is hadal's file for the shape."""
    flags = ["--worker", "--residual", residual]
    for name in ("batch", "seq", "threads"):
        flags += [f"--{name}", getattr(args, name)]
    hadal = [args.hadal, "bench", *flags, "--model", model]
    if args.precision:
        hadal += ["--precision", args.precision]
    torch = [args.python, HERE / "bench.py", *flags]
    for name in ("width", "layers", "heads", "vocab"):
        torch += [f"--{name}", getattr(args, name)]
    torch += ["--qk-norm"] * args.qk_norm
    if args.autocast:
        torch += ["--autocast", args.autocast]
    sides = {"hadal": hadal, "torch-eager": torch}
    if not args.no_compile:
        sides["torch-compile"] = [*torch, "--compile"]
    return sides


def settings(args):
    """The shape as hadal reads it."""
    return (
        f"[model]\nd_model = {args.width}\nn_layers = {args.layers}\nn_heads = {args.heads}\n"
        f"vocab_size = {args.vocab}\nqk_norm = {str(args.qk_norm).lower()}\n"
    )


def compare(residual, args, model):
    """One row for each side, hadal's first."""
    workers = []
    try:
        for name, command in commands(residual, args, model).items():
            tell(f"{residual}: {name} warms up")
            workers.append(Worker(name, command))
            for _ in range(WARM_UP):
                workers[-1].ask("step")
        for pair in range(args.pairs):
            tell(f"{residual}: pair {pair + 1} of {args.pairs}")
            for worker in workers:
                worker.turn(args.turn)
        for worker in workers:
            worker.finish()
    finally:
        for worker in workers:
            worker.process.kill()
    tell("")
    parameters = {worker.ready["parameters"] for worker in workers}
    if len(parameters) > 1:
        sys.exit(f"error: {residual}: the models differ, they have {parameters} parameters")
    return [row(residual, worker, workers[0], args) for worker in workers]


def row(residual, worker, hadal, args):
    tokens = 1e3 * args.batch * args.seq
    memory, ours = (w.closing["peak_rss_mb"] for w in (worker, hadal))
    return {
        "kind": residual,
        "framework": worker.name,
        "simd": worker.ready.get("simd"),
        "torch": worker.ready.get("torch"),
        "precision": (args.precision if worker is hadal else args.autocast) or "f32",
        "cpu": args.cpu,
        "step_ms_median": statistics.median(worker.turns),
        "step_ms_best": min(worker.turns),
        "tokens_per_second": tokens / statistics.median(worker.turns),
        "best_tokens_per_second": tokens / min(worker.turns),
        "hadal_speed": statistics.median(t / h for t, h in zip(worker.turns, hadal.turns)),
        "hadal_speed_range": [
            extreme(t / h for t, h in zip(worker.turns, hadal.turns)) for extreme in (min, max)
        ],
        "peak_rss_mb": memory,
        "hadal_memory": ours / memory if ours and memory else None,
        "pairs": args.pairs,
        **{name: getattr(args, name) for name in ("threads", *SHAPES["bench"])},
    }


def head(rows, args):
    """What was measured where: one line for the machine, one for the model."""
    hadal, torch = rows[0], rows[1]
    normed = ", qk-norm" if args.qk_norm else ""
    print(
        f"{args.cpu or 'a CPU without a name'}; hadal {hadal['simd']}, {hadal['precision']}; "
        f"torch {torch['torch']}, {torch['simd']}, {torch['precision']}\n"
        f"{args.layers} blocks of {args.width}, {args.heads} heads{normed}, {args.vocab} tokens of vocabulary; "
        f"{args.batch} sequences of {args.seq}, threads: {args.threads}; {args.pairs} turns of {args.turn}"
    )


def table(rows):
    titles = ["policy", "side", "step ms", "tokens/s", "best", "hadal's speed / this", "(range)"]
    lines = [titles + ["MB", "hadal's MB / this"]]
    for r in rows:
        low, high = r["hadal_speed_range"]
        lines.append([
            r["kind"],
            r["framework"],
            f"{r['step_ms_median']:.1f}",
            f"{r['tokens_per_second']:,.0f}",
            f"{r['best_tokens_per_second']:,.0f}",
            f"{r['hadal_speed']:.3f}",
            f"{low:.3f} to {high:.3f}",
            "?" if r["peak_rss_mb"] is None else f"{r['peak_rss_mb']:,.0f}",
            "?" if r["hadal_memory"] is None else f"{r['hadal_memory']:.3f}",
        ])
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        left = [cell.ljust(width) for cell, width in zip(line[:2], widths)]
        right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:])]
        print("  ".join(left + right))


def cpu_model():
    """What the CPU calls itself; None where the system does not say."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return None


def warn_if_busy():
    try:
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
    except OSError:
        return
    if load > cores / 4:
        print(
            f"warning: the load average is {load:.1f} on {cores} cores; other programs slow the two "
            "sides down by different shares, so these numbers will not mean much",
            file=sys.stderr,
        )


def tell(text):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("it must be at least 1")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--residual", action="append", metavar="POLICY",
                        help="prenorm, mgr:streams=N or attnres; may be repeated [prenorm]")
    parser.add_argument("--shape", choices=SHAPES, default="bench",
                        help="bench: 8 blocks of 256, 8 x 256 tokens; small: 12 blocks of 64, 8 x 128 [bench]")
    for name, what in [("width", "of the residual stream"), ("layers", "blocks"), ("heads", "heads"),
                       ("vocab", "size of the vocabulary"), ("batch", "sequences of a step"),
                       ("seq", "tokens of a sequence"), ("turn", "steps of a turn")]:
        parser.add_argument(f"--{name}", type=positive, metavar="N", help=f"{what} [the shape's]")
    parser.add_argument("--qk-norm", action=argparse.BooleanOptionalAction,
                        help="norms of queries and keys [the shape's]")
    parser.add_argument("--precision", metavar="P", help="hadal's: hadal bench --precision P")
    parser.add_argument("--autocast", choices=["bf16"], help="PyTorch's products [f32]")
    parser.add_argument("--threads", type=positive, default=2, help="threads of each side [2]")
    parser.add_argument("--pairs", type=positive, default=6, help="turns of each side [6]")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    parser.add_argument("--json", action="store_true", help="print JSON, a line for each side")
    args = parser.parse_args()
    for name, value in SHAPES[args.shape].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.width % (2 * args.heads):
        parser.error(f"--width {args.width} is not {args.heads} heads of an even width")
    args.cpu = cpu_model()
    args.python = os.environ.get("PYTHON", sys.executable)
    args.hadal = os.environ.get("HADAL", HERE.parents[1] / "target" / "release" / "hadal")

    if not Path(args.hadal).exists():
        sys.exit(f"error: {args.hadal} is not there; run cargo build --release, or set HADAL")
    try:
        has_torch = subprocess.run([args.python, "-c", "import torch"], capture_output=True)
    except OSError as error:
        sys.exit(f"error: cannot run PYTHON: {error}")
    if has_torch.returncode:
        sys.exit(INSTALL.format(python=args.python, script=sys.argv[0]))

    warn_if_busy()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "shape.toml"
        model.write_text(settings(args))
        for residual in args.residual or ["prenorm"]:
            rows += compare(residual, args, model)
    if args.json:
        for line in rows:
            print(json.dumps(line))
    else:
        head(rows, args)
        table(rows)


if __name__ == "__main__":
    main()

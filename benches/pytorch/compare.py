#!/usr/bin/env python3
"""Runs hadal and PyTorch (eager and compiled) in turn and prints one table.

    compare.py [--residual POLICY]... [--batch N] [--seq N] [--threads N] [--pairs N] [--json]

hadal is $HADAL, or target/release/hadal of this repository. PyTorch runs in $PYTHON, or in the python
that runs this script; only that one needs torch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
WARM_UP = 3
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


def compare(residual, args):
    """One row for each side, hadal's first."""
    flags = ["--worker", "--residual", residual]
    for name in ("batch", "seq", "threads"):
        flags += [f"--{name}", getattr(args, name)]
    torch = [args.python, HERE / "bench.py"]
    commands = {"hadal": [args.hadal, "bench", *flags], "torch-eager": [*torch, *flags]}
    if not args.no_compile:
        commands["torch-compile"] = [*torch, "--compile", *flags]
    workers = []
    try:
        for name, command in commands.items():
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
    }


def table(rows):
    head = ["policy", "side", "step ms", "tokens/s", "best", "hadal's speed / this", "(range)"]
    lines = [head + ["MB", "hadal's MB / this"]]
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
    parser.add_argument("--batch", type=positive, default=8, help="sequences of a step [8]")
    parser.add_argument("--seq", type=positive, default=256, help="tokens of a sequence [256]")
    parser.add_argument("--threads", type=positive, default=2, help="threads of each side [2]")
    parser.add_argument("--pairs", type=positive, default=6, help="turns of each side [6]")
    parser.add_argument("--turn", type=positive, default=2, help="steps of a turn [2]")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    parser.add_argument("--json", action="store_true", help="print JSON, a line for each side")
    args = parser.parse_args()
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
    for residual in args.residual or ["prenorm"]:
        rows += compare(residual, args)
    if args.json:
        for line in rows:
            print(json.dumps(line))
    else:
        table(rows)


if __name__ == "__main__":
    main()

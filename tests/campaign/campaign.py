#!/usr/bin/env python3
"""Tries to break hadal: kills, flipped bytes, full disks, fuzzing, hostile clients. Prints one table.

Needs a built binary (`cargo build --release --bin hadal`) and Python 3; a full disk needs root, fuzzing needs cargo.

  tests/campaign/campaign.py                         # everything, about an hour
  tests/campaign/campaign.py --quick                 # everything, a few minutes
  tests/campaign/campaign.py --only kills --kills 40 --seed 7
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import disk
import flips
import kills
from common import Bench, Tally, settings

PARTS = ("kills", "flips", "disk", "fuzz", "load")
HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]


def fuzz(bench, seconds):
    tally = Tally("fuzzing")
    done = subprocess.run([str(HERE / "fuzz"), "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    print(done.stdout, flush=True)
    for line in done.stdout.splitlines():
        found = re.match(r"\|? *([\w-]+) *\|? +([\d,]+) executions", line)
        if found:
            tally.count("executions", int(found.group(2).replace(",", "")))
            tally.count("targets")
    if done.returncode != 0:
        tally.fail("a target crashed; see above")
    return [tally]


def load(bench, seconds, clients):
    tally = Tally(f"hostile load on serve, {clients} clients")
    runs = bench.fresh("load-runs")
    for seed in range(12):
        bench.must("train", "--out", runs / f"r{seed}", "--seed", seed, *settings("data.generated.length=24", "train.steps=20"))
    server = subprocess.Popen([str(bench.hadal), "serve", str(runs), "--port", "0"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=bench.env, text=True)
    try:
        url = None
        while not url:
            url = re.search(r"http://[^\s]+:\d+", server.stdout.readline() or sys.exit("serve did not start"))
        command = [sys.executable, str(HERE / "load.py"), url.group(0), "--clients", str(clients), "--seconds", str(seconds),
                   "--pid", str(server.pid)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        answer = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(answer, indent=1), flush=True)
        tally.count("requests", sum(number for name, number in answer["counts"].items() if name.startswith("status")))
        tally.count("of honest clients", answer["honest"]["requests"])
        tally.count("ms for 99 % of those", round(1000 * answer["honest"]["p99_s"]))
        for name, value in answer["rss_mb"].items():
            tally.count(f"MB {name}", value)
        for kind, number in answer["failed"].items():
            tally.fail(f"{number} times {kind}: {answer['examples'].get(kind, '')}")
        if server.poll() is not None:
            tally.fail(f"the server ended: {server.returncode}")
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            tally.fail("the server did not end within 10 s of SIGTERM")
    return [tally]


def cpu():
    try:
        return next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    except OSError:
        return platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hadal", default=REPOSITORY / "target/release/hadal", help="the binary")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a twentieth of everything")
    parser.add_argument("--kills", type=int, default=400)
    parser.add_argument("--flips", type=int, default=2400)
    parser.add_argument("--writes", type=int, default=200, help="most writes of a job to fail, one at a time")
    parser.add_argument("--fuzz-seconds", type=int, default=120, help="for each target")
    parser.add_argument("--load-seconds", type=int, default=600)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="repeats kills and flips")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--scratch", type=Path, help="a folder that is kept, instead of a temporary one")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if not Path(arguments.hadal).is_file():
        parser.error(f"{arguments.hadal} does not exist; cargo build --release --bin hadal")
    share = 20 if arguments.quick else 1
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(arguments.hadal, arguments.scratch or temporary, arguments.seed)
        version = bench.must("--version").out.strip()
        commit = subprocess.run(["git", "-c", "core.fsmonitor=false", "rev-parse", "--short=12", "HEAD"], capture_output=True,
                                text=True, cwd=REPOSITORY).stdout.strip()
        began = time.monotonic()
        runs = {
            "kills": lambda: kills.campaign(bench, arguments.kills // share),
            "flips": lambda: flips.campaign(bench, REPOSITORY, arguments.flips // share),
            "disk": lambda: disk.campaign(bench, arguments.writes // share),
            "fuzz": lambda: fuzz(bench, max(1, arguments.fuzz_seconds // share)),
            "load": lambda: load(bench, max(5, arguments.load_seconds // share), arguments.clients),
        }
        tallies = []
        for part in parts:
            print(f"== {part}", flush=True)
            for tally in runs[part]():
                print(tally.row(), flush=True)
                tallies.append(tally)
    failures = sum(len(tally.failures) for tally in tallies)
    table = [f"{version}, commit {commit or 'unknown'}, {cpu()}, {os.cpu_count()} cores, seed {arguments.seed}, "
             f"{(time.monotonic() - began) / 60:.0f} minutes, {failures} failures", "",
             "| what | counts | failures | time |", "|---|---|---|---|", *(tally.row() for tally in tallies)]
    print("\n" + "\n".join(table))
    for tally in tallies:
        for failure in tally.failures:
            print(f"FAILED {tally.name}: {failure}")
    if arguments.out:
        arguments.out.write_text("\n".join(table) + "\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()

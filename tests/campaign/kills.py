"""Kills at random moments and at every operation on files; what comes out in the end is the same to the bit."""

import json
import re
import subprocess
import time
import urllib.request

from common import Tally, digest, remove, settings, text, trained


class Job:
    """A command that is begun, killed, and begun or continued again until it is done."""

    def __init__(self, name, start, again=None, result=digest, pieces=False):
        """`start(out)` and `again(out)` give arguments, `result(out)` what must be equal in the end. `pieces`: what
        is at `out` grows piece by piece; otherwise it is whole or absent, and a second start needs a free place."""
        self.name, self.start, self.again, self.result, self.pieces = name, start, again or start, result, pieces

    def is_done(self, out):
        return (out / "model").exists() if self.result is trained else out.exists() and not self.pieces


def jobs(bench):
    """The commands that write something, on inputs that are made once."""
    source = bench.root / "source.txt"
    source.write_text(text(40_000))
    data = bench.root / "data"
    if not data.exists():
        bench.must("data", "prepare", source, "--out", data)
    suite = bench.root / "suite.toml"
    suite.write_text('seeds = [0, 1]\nthreads = 1\n[train]\nsteps = 12\nbatch = 2\n[model]\nd_model = 16\nn_layers = 2\nn_heads = 2\n'
                     '[data]\ngenerated = { task = "khop", length = 24 }\n[checkpoint]\nevery_steps = 4\n'
                     '[[variant]]\nresidual = "prenorm"\n[[variant]]\nresidual = "nag"\n')
    model = bench.root / "model-run"
    if not (model / "model").exists():
        remove(model)
        bench.must("train", "--preset", "micro", "--residual", "prenorm", "--out", model,
                   *settings(f"data.train={data}", "train.seq_len=24", "train.steps=10", "model.mlp=swiglu"))
    plan = bench.root / "plan-fixed.json"
    if not plan.exists():
        bench.must("prune", "plan", model, "--blocks", 1, "--out", plan)

    def train(*more):
        return lambda out: ["train", "--out", out, *settings("data.generated.length=24", *more)]

    def resume_or(start):
        return lambda out: ["train", "--resume", out] if (out / "config.toml").exists() else start(out)

    every = train("train.steps=30", "checkpoint.every_steps=1")
    some = train("train.steps=150", "checkpoint.every_steps=7", "checkpoint.keep=3")
    text_run = lambda out: ["train", "--preset", "micro", "--out", out,
                            *settings(f"data.train={data}", "train.seq_len=24", "train.steps=40", "checkpoint.every_steps=5")]
    table = lambda out: digest(out / "results.json")
    return [
        Job("train, saving each step", every, resume_or(every), trained, pieces=True),
        Job("train, saving now and then", some, resume_or(some), trained, pieces=True),
        Job("train on text", text_run, resume_or(text_run), trained, pieces=True),
        Job("compare", lambda out: ["compare", suite, "--out", out, "--jobs", 2], result=table, pieces=True),
        Job("data prepare", lambda out: ["data", "prepare", source, "--out", out, "--shard-tokens", 20_000], pieces=True),
        Job("prune plan", lambda out: ["prune", "plan", model, "--blocks", 1, "--out", out]),
        Job("prune apply", lambda out: ["prune", "apply", plan, "--out", out]),
        Job("export hf", lambda out: ["export", model, "--out", out, "--format", "hf"]),
        Job("export gguf", lambda out: ["export", model, "--out", out, "--format", "gguf"]),
    ]


def campaign(bench, kills):
    """About so many kills, the same number for every job."""
    tallies = []
    for job in jobs(bench):
        tally = Tally(f"kill -9: {job.name}")
        reference = bench.fresh(f"kill-reference-{job.name.replace(' ', '-').replace(',', '')}")
        bench.must(*job.start(reference))
        expected = job.result(reference)
        seconds, operations = measure(bench, job)
        goal = max(1, kills // 10)
        while tally.counts.get("kills", 0) < goal:
            one(bench, job, tally, expected, seconds, operations)
            if len(tally.failures) > 5:
                break
        tallies.append(tally)
    tallies.append(server(bench, max(1, kills // 10)))
    return tallies


def measure(bench, job):
    """Seconds that the job takes, and how many operations on files."""
    out = bench.fresh("kill-measure")
    began = time.monotonic()
    bench.must(*job.start(out))
    seconds = time.monotonic() - began
    low, high = 0, 4096
    # The largest operation at which a kill still meets it.
    while low < high:
        middle = (low + high + 1) // 2
        outcome = bench.run(*job.start(bench.fresh("kill-measure")), fault=f"kill:{middle}")
        low, high = (low, middle - 1) if outcome.code == 0 else (middle, high)
    return seconds, low


def one(bench, job, tally, expected, seconds, operations):
    """A few kills on the way to one end."""
    out = bench.fresh("kill-out")
    arguments = job.start(out)
    for _ in range(1 + bench.random.randrange(4)):
        if bench.random.random() < 0.5:
            # In a suite the fault meets its processes as well, and the parent then ends by itself.
            met = bench.run(*arguments, fault=f"kill:{bench.random.randint(1, operations)}").code != 0
        else:
            met = bench.killed_after(seconds * bench.random.random(), *arguments)
        if not met:
            break
        tally.count("kills")
        if job.is_done(out):
            break
        arguments = job.again(out)
    if not job.is_done(out):
        outcome = bench.run(*arguments)
        if outcome.code != 0:
            tally.fail(f"seed {bench.seed}: going on ended with {outcome!r}")
            return
    tally.count("ends compared")
    found = job.result(out)
    if found != expected:
        tally.fail(f"seed {bench.seed}: another end: {difference(found, expected)}")
    leftovers = list(out.parent.glob("kill-out.*"))
    if leftovers and not job.is_done(out):
        tally.fail(f"left over: {leftovers}")
    for path in leftovers:
        remove(path)


def difference(found, expected, above=""):
    if isinstance(found, str) or isinstance(expected, str):
        return above or "its bytes"
    names = [name for name in {*found, *expected} if found.get(name) != expected.get(name)]
    return ", ".join(difference(found.get(name, ""), expected.get(name, ""), f"{above}/{name}") for name in sorted(names)[:4])


def server(bench, kills):
    """A killed server leaves every run as it was and starts again with all of them."""
    tally = Tally("kill -9: serve")
    runs = bench.fresh("serve-runs")
    for seed in range(3):
        bench.must("train", "--out", runs / f"r{seed}", "--seed", seed, *settings("data.generated.length=24", "train.steps=6"))
    before = digest(runs)
    for _ in range(kills):
        child = subprocess.Popen([str(bench.hadal), "serve", str(runs), "--port", "0"], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=bench.env, text=True)
        try:
            line, found = "", None
            while not found:
                line = child.stdout.readline()
                if not line:
                    break
                found = re.search(r"http://[^\s]+:\d+", line)
            if not found:
                tally.fail("did not start again")
                break
            if bench.random.random() < 0.7:
                answer = urllib.request.urlopen(found.group(0) + "/api/runs", timeout=10).read()
                if len(json.loads(answer)["runs"] if isinstance(json.loads(answer), dict) else json.loads(answer)) != 3:
                    tally.fail("a run was forgotten")
            time.sleep(0.1 * bench.random.random())
        finally:
            child.kill()
            child.wait()
        tally.count("kills")
    after = {name: value for name, value in digest(runs).items() if name in before}
    if after != before:
        tally.fail(f"runs were changed: {difference(after, before)}")
    return tally

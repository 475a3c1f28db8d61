"""One flipped byte in every kind of file that hadal reads: refused by name, mended with a word, or without effect."""

import os
import re
import shutil

from common import Tally, digest, remove, settings, text


class Case:
    """A file, the command that reads it, and what the command gives."""

    def __init__(self, name, file, command, result, prepare=None, within=None):
        """`result(outcome)` must be the same as without the flip, unless the file was named. `prepare()` brings the
        folder back into its first state. `within` limits where bytes are flipped."""
        self.name, self.file, self.command, self.result = name, file, command, result
        self.prepare, self.within = prepare, within


def cases(bench, repository):
    root = bench.root / "flips"
    remove(root)
    root.mkdir(parents=True)
    source = root / "source.txt"
    source.write_text(text(6_000))
    data = root / "data"
    bench.must("data", "prepare", source, "--out", data)
    on_text = ["--preset", "micro", "--residual", "prenorm"]
    small = settings(f"data.train={data}", "train.seq_len=24", "train.steps=8", "checkpoint.every_steps=4", "checkpoint.keep=3",
                     "model.mlp=swiglu", "eval.batches=1")

    finished = root / "finished"
    bench.must("train", *on_text, "--out", finished, *small)
    half = root / "half"
    # Ends at the last checkpoint's name: steps 0 and 4 are saved, step 8 is not.
    bench.run("train", *on_text, "--out", half, *small, fault="kill:rename step-000000008")
    if not (half / "checkpoints/step-000000004").exists():
        raise SystemExit("no unfinished run to damage")
    work = root / "work"

    def again(run):
        def prepare():
            remove(work)
            shutil.copytree(run, work)
        return prepare

    model_of = lambda run: digest(run / "model" / "model.safetensors") if (run / "model").exists() else None
    numbers = lambda outcome: re.sub(r'"[a-z_]*(second|time|rss)[a-z_]*": *[-0-9.e+]+', "", outcome.out)
    resumed = lambda outcome: model_of(work)
    resume = ["train", "--resume", work]
    list_ = []

    for name in ("state.safetensors", "state.json", "manifest.json"):
        list_.append(Case(f"checkpoint {name} / resume", work / "checkpoints/step-000000004" / name, resume, resumed, again(half)))
    for name in ("config.toml", "metrics.jsonl", "run.json"):
        list_.append(Case(f"{name} / resume", work / name, resume, resumed, again(half)))
    events = next(half.glob("events.out*")).name
    list_.append(Case("events / resume", work / events, resume, resumed, again(half)))

    report = root / "report.html"
    page = lambda outcome: report.read_text()
    for name in ("metrics.jsonl", "outcome.json", "run.json"):
        list_.append(Case(f"finished {name} / report", work / name, ["report", work, "--output", report], page, again(finished)))
    new = root / "new"
    trained = lambda outcome: model_of(new)
    begin = ["train", *on_text, "--out", new, *small]
    for name in ("shard-00000.bin", "manifest.json"):
        list_.append(Case(f"data {name} / train", data / name, begin, trained, lambda: remove(new)))
    list_.append(Case("data shard / data stats", data / "shard-00000.bin", ["data", "stats", data, "--json"], numbers))
    list_.append(Case("data shard / data peek", data / "shard-00000.bin", ["data", "peek", data], numbers))
    diagnose = ["diagnose", finished, "--only", "removal", "--json", "--out", root / "diagnosis"]
    list_.append(Case("data shard / diagnose", data / "shard-00000.bin", diagnose, numbers))
    plan = ["prune", "plan", finished, "--blocks", 1, "--json", "--out", root / "plan-new.json"]
    plan_made = lambda outcome: digest(root / "plan-new.json") if (root / "plan-new.json").exists() else None
    list_.append(Case("data shard / prune plan", data / "shard-00000.bin", plan, plan_made, lambda: remove(root / "plan-new.json")))

    fixed = root / "plan.json"
    bench.must("prune", "plan", finished, "--blocks", 1, "--out", fixed)
    cut = root / "cut"
    list_.append(Case("plan.json / prune apply", fixed, ["prune", "apply", fixed, "--out", cut],
                      lambda outcome: digest(cut / "model.safetensors") if cut.exists() else None, lambda: remove(cut)))

    ours = root / "ours"
    shutil.copytree(finished / "model", ours)
    score = lambda model: ["perplexity", model, "--data", source, "--context", 24, "--chunks", 2, "--json"]
    for name in ("model.safetensors", "config.json", "manifest.json"):
        list_.append(Case(f"our {name} / perplexity", ours / name, score(ours), numbers))
    exported = root / "exported"
    bench.must("export", finished, "--out", exported, "--format", "hf")
    foreign = root / "foreign"
    shutil.copytree(exported, foreign)
    (foreign / "manifest.json").unlink(missing_ok=True)
    gguf = root / "model.gguf"
    bench.must("export", finished, "--out", gguf, "--format", "gguf")
    for name in ("model.safetensors", "config.json"):
        list_.append(Case(f"exported {name} / perplexity", exported / name, score(exported), numbers))
        list_.append(Case(f"foreign {name} / perplexity", foreign / name, score(foreign), numbers))
    list_.append(Case("GGUF / perplexity", gguf, score(gguf), numbers))
    list_.append(Case("GGUF header / perplexity", gguf, score(gguf), numbers, within=4096))
    stories = root / "stories"
    shutil.copytree(repository / "tests/models/stories260K", stories)
    list_.append(Case("tokenizer.json / perplexity", stories / "tokenizer.json", score(stories), numbers))

    suite = root / "suite.toml"
    suite.write_text('seeds = [0]\nthreads = 1\n[train]\nsteps = 6\nbatch = 2\n[model]\nd_model = 16\nn_layers = 2\nn_heads = 2\n'
                     '[data]\ngenerated = { task = "khop", length = 24 }\n[[variant]]\nresidual = "prenorm"\n[[variant]]\nresidual = "nag"\n')
    compared = root / "compared"
    bench.must("compare", suite, "--out", compared, "--jobs", 2)
    both = ["compare", suite, "--out", work, "--json"]
    for name in ("metrics.jsonl", "outcome.json", "config.toml", "run.json"):
        list_.append(Case(f"finished {name} / compare", work / "runs/nag-s0" / name, both, numbers, again(compared)))
    list_.append(Case("suite.json / compare", work / "suite.json", both, numbers, again(compared)))
    return list_


def campaign(bench, repository, flips):
    """About so many flips over all cases, the same number for each."""
    all_cases = cases(bench, repository)
    tallies = []
    for case in all_cases:
        tally = Tally(f"flip: {case.name}")
        tallies.append(tally)
        if case.prepare:
            case.prepare()
        if not case.file.exists():
            tally.fail(f"{case.file} does not exist")
            continue
        expected = case.result(bench.must(*case.command))
        for _ in range(max(1, flips // len(all_cases))):
            if case.prepare:
                case.prepare()
            one(bench, case, tally, expected)
    return tallies


def one(bench, case, tally, expected):
    content = case.file.read_bytes()
    place = bench.random.randrange(min(len(content), case.within or len(content)))
    bit = 1 << bench.random.randrange(8)
    times = case.file.stat()
    damaged = bytearray(content)
    damaged[place] ^= bit
    # Written in place, and the time stays: this is what a bad disk does.
    with open(case.file, "r+b") as file:
        file.write(damaged)
    os.utime(case.file, ns=(times.st_atime_ns, times.st_mtime_ns))
    outcome = bench.run(*case.command)
    said = outcome.err + outcome.out
    named = case.file.name in said
    result = case.result(outcome) if outcome.code == 0 else None
    where = f"bit {bit:#x} of byte {place} of {case.file.name}"
    tally.count("flips")
    if outcome.crashed:
        tally.count("crashes")
        tally.fail(f"{where}: {outcome!r}")
    elif outcome.code != 0:
        tally.count("refused")
        if not named:
            tally.fail(f"{where}: refused without naming the file: {outcome!r}")
    elif result == expected:
        tally.count("mended with a warning" if named and "warning" in outcome.err else "no effect")
    elif named:
        tally.count("said")
    else:
        tally.fail(f"{where}: silently another result")
    if not case.prepare or case.file.exists():
        with open(case.file, "r+b") as file:
            file.write(content)
            file.truncate()
        os.utime(case.file, ns=(times.st_atime_ns, times.st_mtime_ns))

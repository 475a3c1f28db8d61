"""What all parts of the campaign share: a scratch folder, tiny inputs, commands, and what counts as a failure."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

# A model so small that a step takes milliseconds.
TINY = ["model.d_model=16", "model.n_layers=6", "model.n_heads=2", "train.batch=2", "schedule.warmup_steps=5"]
# Ends that no input and no fault may cause: panic, abort, broken memory.
CRASHES = {101, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGILL, -signal.SIGBUS, -signal.SIGFPE}


class Outcome:
    """How a command ended."""

    def __init__(self, code, out, err, hung=False):
        self.code, self.out, self.err, self.hung = code, out, err, hung

    @property
    def crashed(self):
        return self.hung or self.code in CRASHES or "this is a bug in hadal" in self.err

    def __repr__(self):
        return f"exit code {self.code}{', hung' if self.hung else ''}: {self.err.strip()[-400:]}"


class Bench:
    """The binary, a folder for everything, and a source of chance that can be repeated."""

    def __init__(self, hadal, root, seed):
        self.hadal, self.root, self.seed = Path(hadal).resolve(), Path(root), seed
        self.random = random.Random(seed)
        self.root.mkdir(parents=True, exist_ok=True)
        self.env = {**os.environ, "HADAL_CACHE": str(self.root / "cache"), "RAYON_NUM_THREADS": "1", "NO_COLOR": "1"}
        for name in ("HADAL_FAULT", "HADAL_VERIFY", "RUST_BACKTRACE"):
            self.env.pop(name, None)

    def run(self, *arguments, fault=None, timeout=120, cwd=None):
        """A command from its start to its end."""
        env = {**self.env, "HADAL_FAULT": fault} if fault else self.env
        command = [str(self.hadal), *map(str, arguments)]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=env, timeout=timeout, cwd=cwd)
        except subprocess.TimeoutExpired as late:
            return Outcome(None, "", (late.stderr or b"").decode(errors="replace"), hung=True)
        return Outcome(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def must(self, *arguments, **options):
        outcome = self.run(*arguments, **options)
        if outcome.code != 0:
            raise SystemExit(f"hadal {' '.join(map(str, arguments))}\n{outcome!r}")
        return outcome

    def killed_after(self, seconds, *arguments):
        """A command that is killed after a while. Says whether it was still at work."""
        child = subprocess.Popen([str(self.hadal), *map(str, arguments)], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self.env)
        try:
            child.wait(seconds)
            return False
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return True

    def fresh(self, name):
        """An empty place that does not exist yet."""
        path = self.root / name
        remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def remove(path):
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def settings(*more):
    """`--set` for a tiny run."""
    return [part for setting in [*TINY, *more] for part in ("--set", setting)]


def text(words):
    """Words that differ, in lines of fifty."""
    return "".join(f"{i * i % 997}{chr(10) if i % 50 == 49 else ' '}" for i in range(words))


def untimed(value):
    """JSON without what a clock, the memory or the name of the output decides."""
    timed = ("second", "time", "rss", "speed", "date", "hash", "prefill", "decode", "command", "redo", "undo", "earlier")
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if not any(word in k for word in timed)}
    return [untimed(v) for v in value] if isinstance(value, list) else value


def digest(path):
    """What a file or directory holds, apart from times, locks and logs of processes."""
    if path.is_file():
        content = path.read_bytes()
        try:
            lines = content.splitlines() if path.suffix == ".jsonl" else [content]
            content = json.dumps([untimed(json.loads(line)) for line in lines]).encode()
        except ValueError:
            pass
        return hashlib.blake2b(content, digest_size=12).hexdigest()
    return {entry.name: digest(entry) for entry in sorted(path.iterdir()) if not entry.name.startswith("events.out")
            and entry.name not in ("lock", "logs", "peak_rss_mb", "run.json", "report.html", "outcome.json", ".lock")}


def trained(run):
    """What a finished run gives: its model, its metrics, and its newest state."""
    newest = max((run / "checkpoints").glob("step-*[0-9]"))
    return {"model": digest(run / "model"), "metrics": digest(run / "metrics.jsonl"),
            "state": {newest.name: digest(newest / "state.safetensors")}}


class Tally:
    """Counts, and the first few failures in words."""

    def __init__(self, name):
        self.name, self.counts, self.failures, self.began = name, {}, [], time.monotonic()
        self.ended = self.began

    def count(self, what, number=1):
        self.ended = time.monotonic()
        self.counts[what] = self.counts.get(what, 0) + number

    def fail(self, message):
        self.failures.append(message)
        print(f"  FAILED {self.name}: {message}", flush=True)

    def row(self):
        counts = ", ".join(f"{number:,} {what}" for what, number in self.counts.items())
        return f"| {self.name} | {counts} | {len(self.failures)} | {self.ended - self.began:.0f} s |"

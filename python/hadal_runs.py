"""Run folders of hadal as pandas tables. Copy this file beside your notebook; it needs Python 3.11 and pandas.

    import hadal_runs as hadal
    hadal.runs("runs")                       # one row for each run, of suites as well
    hadal.metrics("runs/nano-mgr-0")         # one row for each step
    hadal.evaluations("runs/nano-mgr-0")     # one row for each evaluation
    hadal.suite("runs/compare")              # the table of a suite; .attrs["verdict"] says it in words
    hadal.diagnosis("runs/nano-mgr-0")       # figures of `hadal diagnose`, by name

Nothing is locked or changed, so a run can be read while it goes on. A line that cannot be read is left out, and so is
a last line without its end, as hadal does. docs/training.md says what is in a run folder.
"""

import json
import tomllib
from pathlib import Path

import pandas as pd

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None


def runs(directory="runs"):
    """One row for each run at or below a directory: name, policy, seed, status, results, and the settings in which
    the runs differ. `train_loss` is the mean of the last tenth of the steps, `loss` that of the last evaluation."""
    directory = Path(directory)
    rows, settings = [], []
    for path in _run_folders(directory):
        try:
            config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # no settings, no run
        flat = _flat(config)
        name = path.relative_to(directory).as_posix() if path != directory else path.resolve().name
        seed = flat.pop("seed", 0)
        rows.append({"run": name, "policy": _policy(config), "seed": seed, **_results(path)})
        settings.append(flat)
    # Lists are no values of a table's cells.
    settings = [{k: str(v) if isinstance(v, list) else v for k, v in flat.items()} for flat in settings]
    keys = sorted({key for flat in settings for key in flat if not key.startswith("residual.")})
    differ = [key for key in keys if len({repr(flat.get(key)) for flat in settings}) > 1]
    for row, flat in zip(rows, settings):
        row.update((key, flat.get(key)) for key in differ)
    return pd.DataFrame(rows)


def metrics(run):
    """One row for each step of training: step, loss, gradient_norm, rate, tokens, tokens_per_second, ..."""
    return _table(run, "train")


def evaluations(run):
    """One row for each evaluation on held-out data: step, loss, perplexity, and accuracy or bits_per_byte."""
    return _table(run, "eval")


def suite(directory="runs/compare"):
    """The table of a suite, one row for each variant. `suite(..).attrs["verdict"]` says it in sentences."""
    directory = Path(directory)
    table = pd.read_csv(directory / "table.csv")
    table.attrs["verdict"] = _json(directory / "table.json").get("verdict", [])
    return table


def diagnosis(directory):
    """The figures of `hadal diagnose` as tables, by name, of a run or of the folder that --out named. The most telling
    numbers are in `diagnosis(..)["summary"]`, which is a dictionary."""
    directory = Path(directory)
    if (directory / "diagnosis").is_dir():
        directory = directory / "diagnosis"
    figures = {path.stem: pd.read_csv(path) for path in sorted(directory.glob("*.csv"))}
    summary = directory / "about" / "summary.json"
    return {"summary": _json(summary), **figures} if summary.is_file() else figures


def status(run):
    """`running`, `done`, `failed` or `stopped`, as hadal tells them apart."""
    run = Path(run)
    if _is_locked(run / "lock"):
        return "running"
    if (run / "model").is_dir():
        return "done"
    return "failed" if _ended_in_failure(run) else "stopped"


def _run_folders(directory):
    if (directory / "config.toml").is_file():
        yield directory
        return  # what is in a run is its own
    for below in sorted(directory.iterdir()) if directory.is_dir() else []:
        # What ends in .part is being written.
        if below.is_dir() and not below.is_symlink() and below.suffix != ".part":
            yield from _run_folders(below)


def _results(run):
    lines = list(_lines(run / "metrics.jsonl"))
    steps = [line for line in lines if line.get("kind") == "train"]
    last = next((line for line in reversed(lines) if line.get("kind") == "eval"), {})
    end = [step["loss"] for step in steps[-max(1, len(steps) // 10) :] if step.get("loss") is not None]
    row = {
        "status": status(run),
        "step": max((step.get("step", 0) for step in steps), default=0),
        "loss": last.get("loss"),
        "train_loss": sum(end) / len(end) if end else None,
    }
    row |= {key: last[key] for key in ("bits_per_byte", "accuracy", "exact_match") if key in last}
    return row | _json(run / "outcome.json")


def _table(run, kind):
    rows = [line for line in _lines(Path(run) / "metrics.jsonl") if line.get("kind") == kind]
    table = pd.DataFrame(rows).drop(columns="kind", errors="ignore")
    # Numbers that are not finite are null in the file.
    return table.apply(pd.to_numeric, errors="coerce")


def _lines(path):
    try:
        data = path.read_bytes()
    except OSError:
        return
    for line in data.split(b"\n")[:-1]:  # what follows the last end of a line is not whole
        value = _parsed(line)
        if isinstance(value, dict):
            yield value


def _json(path):
    try:
        value = _parsed(path.read_bytes())
    except OSError:
        value = None
    return value if isinstance(value, dict) else {}


def _parsed(data):
    def refuse(word):
        raise ValueError(word)  # NaN and Infinity are no JSON

    try:
        return json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None


def _flat(table, above=""):
    flat = {}
    for key, value in table.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {above + key: value}
    return flat


def _policy(config):
    residual = dict(config.get("residual", {}))
    kind = residual.pop("kind", "unknown")
    words = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in residual.items()]
    return kind + (":" + ",".join(words) if words else "")


def _is_locked(path):
    if fcntl is None:
        return False
    try:
        with open(path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _ended_in_failure(run):
    newest = None
    for path in (run / "failures").glob("step-*-*"):
        step, _, number = path.name.removeprefix("step-").partition("-")
        if step.isdigit() and number.isdigit():
            newest = max(newest or (-1, -1, path), (int(number), int(step), path))
    if newest is None:
        return False
    _, step, path = newest
    done = next((line["step"] for line in reversed(list(_lines(run / "metrics.jsonl"))) if "step" in line), 0)
    return _json(path / "failed-step.json").get("then") in (None, "stop") and step == done

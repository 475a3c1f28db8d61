#!/usr/bin/env python3
"""Holds any implementation of a residual stream to golden traces.

    python check.py ADAPTER.py GOLDEN_DIRECTORY...

ADAPTER.py defines `run(config, weights, input_ids, target_ids)` and returns a dictionary of what it computes, by the
names of the trace: `logits`, `loss`, `out`, `h.0`, `h.1`, .., `grad.embed.weight`, ... Values are numpy arrays, torch
tensors, or whatever numpy turns into an array. README.md beside this file says what each name means.

This one file needs Python 3.9 and numpy, and nothing of hadal. Only your adapter needs your framework.

Exit codes: 0 everything agrees; 1 something differs or is missing; 2 nothing could be compared.
"""

import argparse
import importlib.util
import json
import math
import os
import struct
import sys

try:
    import numpy as np
except ImportError:
    sys.exit("error: check.py needs numpy (pip install numpy)")

#: The largest difference, relative to the largest magnitude of a tensor, that 32 bits need. In 64 bits 1e-6 holds: traces
#: are stored in 32.
TOLERANCE = 2e-4
#: Some gradients vanish by symmetry, and what is computed there is the rounding of large terms that cancel. So a gradient
#: is compared at no less than this share of the trace's largest one.
GRADIENT_FLOOR = 0.01
#: What a trace holds besides results.
INPUTS = ("input_ids", "target_ids")

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
#: No header of a golden is this long.
LONGEST_HEADER = 1 << 26


class Unusable(Exception):
    """Nothing can be compared, and why."""


def read_tensors(path):
    """Every tensor of a .safetensors file by name."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise Unusable(f"cannot read {path}: {error.strerror}") from None
    try:
        (length,) = struct.unpack("<Q", data[:8])
        if length > min(LONGEST_HEADER, len(data) - 8):
            raise ValueError("its header is longer than the file")
        header, body = json.loads(data[8 : 8 + length]), memoryview(data)[8 + length :]
        found = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            raw, shape = body[begin:end], entry["shape"]
            if entry["dtype"] == "BF16":
                values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                values = np.frombuffer(raw, TYPES[entry["dtype"]])
            found[name] = values.reshape(shape)
        return found
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise Unusable(f"{path} is not a whole safetensors file: {error}") from None


def read_golden(directory):
    """The config, the weights and the trace of a golden directory."""
    path = os.path.join(directory, "config.json")
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except OSError as error:
        raise Unusable(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise Unusable(f"{path} is not JSON: {error}") from None
    weights = read_tensors(os.path.join(directory, "model.safetensors"))
    trace = read_tensors(os.path.join(directory, "trace.safetensors"))
    if "input_ids" not in trace or "logits" not in trace:
        raise Unusable(f"the trace in {directory} lacks input_ids or logits")
    return config, weights, trace


def read_adapter(path):
    """The function `run` of a Python file."""
    if not os.path.isfile(path):
        raise Unusable(f"there is no adapter {path}")
    folder = os.path.dirname(os.path.abspath(path))
    sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location("adapter", path)
    if spec is None:
        raise Unusable(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "run", None)):
        raise Unusable(f"{path} defines no function `run(config, weights, input_ids, target_ids)`")
    return module.run


def as_array(value):
    """What an adapter returned, as f64."""
    for method in ("detach", "cpu"):
        if hasattr(value, method):
            value = getattr(value, method)()
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        value = value.float()
    return np.asarray(value, dtype=np.float64)


def stage(name):
    """Where a tensor belongs in the table, in the order of the computation."""
    if name.startswith("h."):
        return 0, "sub-layers' inputs"
    if name.startswith("grad.residual."):
        return 5, "gradients, stream"
    if name.startswith("grad."):
        return 4, "gradients, others"
    known = {"out": (1, "read-out"), "logits": (2, "logits"), "loss": (3, "loss")}
    return known.get(name, (6, name))


def order(name):
    """Sub-layers by number, the rest by name."""
    number = name.split(".")[1] if name.startswith("h.") else ""
    return stage(name)[0], int(number) if number.isdigit() else -1, name


def compare(trace, found, tolerance):
    """One row for each result of the trace: name, error, where, expected, found, whether it is missing."""
    gradients = [np.abs(v).max() for n, v in trace.items() if n.startswith("grad.") and v.size]
    floor = GRADIENT_FLOOR * float(max(gradients, default=0.0))
    rows = []
    for name in sorted((name for name in trace if name not in INPUTS), key=order):
        expected = trace[name].astype(np.float64)
        if name not in found or found[name] is None:
            rows.append({"name": name, "missing": True, "passed": False})
            continue
        actual = as_array(found[name])
        if actual.shape != expected.shape and actual.size == expected.size == 1:
            actual = actual.reshape(expected.shape)
        if actual.shape != expected.shape:
            reason = f"its shape is {list(actual.shape)}, not {list(expected.shape)}"
            rows.append({"name": name, "missing": False, "passed": False, "reason": reason})
            continue
        scale = float(np.abs(expected).max()) if expected.size else 0.0
        if name.startswith("grad."):
            scale = max(scale, floor)
        scale = scale or 1.0
        # What is not a number must not pass for equal.
        apart = np.where(np.isfinite(actual), np.abs(actual - expected), np.inf) / scale
        where = np.unravel_index(int(np.argmax(apart)), apart.shape) if apart.size else ()
        error = float(apart[where]) if apart.size else 0.0
        rows.append({
            "name": name,
            "missing": False,
            "passed": error <= tolerance,
            "error": error,
            "index": [int(i) for i in where],
            "expected": float(expected[where]) if expected.size else 0.0,
            "actual": float(actual[where]) if actual.size else 0.0,
        })
    return rows


def stages(rows, forward):
    """The rows of each stage of the computation, what is wrong with them, and whether they are excused."""
    found = {}
    for row in rows:
        found.setdefault(stage(row["name"]), []).append(row)
    for (_, title), members in sorted(found.items()):
        given = [row for row in members if not row["missing"]]
        missing = [row["name"] for row in members if row["missing"]]
        wrong = [row for row in given if not row["passed"]]
        yield title, members, given, wrong, missing, forward and not given


def passed(rows, forward):
    """Whether everything agrees that has to."""
    return all(not wrong and (excused or not missing) for *_, wrong, missing, excused in stages(rows, forward))


def show(directory, config, rows, forward, verbose):
    """A table with a line for each stage, and a line for each tensor that differs."""
    print(f"{directory}  {json.dumps(config.get('residual', {}))}")
    for title, members, given, wrong, missing, excused in stages(rows, forward):
        verdict = "not given" if excused else "FAILED" if wrong or missing else "ok"
        if missing and not excused:
            verdict += f", {len(missing)} not given: {missing[0]}"
        worst = f"{max(row.get('error', math.inf) for row in given):.1e}" if given else ""
        print(f"  {title:<20} {len(members):>4}  {worst:>8}  {verdict}")
        for row in given if verbose else wrong:
            if "reason" in row:
                print(f"      {row['name']}: {row['reason']}")
                continue
            where = f"{row['error']:.1e} at {row['index']}"
            print(f"      {row['name']}: {where}: {row['actual']:.6g}, expected {row['expected']:.6g}")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="check.py", description="Holds an implementation of a residual stream to golden traces."
    )
    parser.add_argument("adapter", help="a Python file with `run(config, weights, input_ids, target_ids)`")
    parser.add_argument("golden", nargs="+", help="directories with config.json, model.safetensors and trace.safetensors")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help=f"largest relative error (default {TOLERANCE})")
    parser.add_argument("--forward", action="store_true", help="what the adapter gives no part of, such as gradients, may be missing")
    parser.add_argument("--verbose", action="store_true", help="a line for each tensor")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    options = parser.parse_args(arguments)
    if not (math.isfinite(options.tolerance) and options.tolerance > 0):
        parser.error("--tolerance must be a number above 0")

    try:
        run = read_adapter(options.adapter)
        well, report = True, []
        for directory in options.golden:
            config, weights, trace = read_golden(directory)
            try:
                found = run(config, weights, trace["input_ids"], trace.get("target_ids"))
            except NotImplementedError as error:
                raise Unusable(f"{options.adapter} cannot run {directory}: {error}") from None
            if not isinstance(found, dict) or "logits" not in found:
                raise Unusable("run() must return a dictionary with at least `logits`")
            rows = compare(trace, found, options.tolerance)
            fine = passed(rows, options.forward)
            well &= fine
            if options.json:
                entry = {"golden": directory, "residual": config.get("residual"), "passed": fine, "tensors": rows}
                report.append(entry)
            else:
                show(directory, config, rows, options.forward, options.verbose)
    except Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        json.dump({"passed": well, "tolerance": options.tolerance, "goldens": report}, sys.stdout, indent=1)
        print()
    else:
        print("everything agrees" if well else "NOT the same")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())

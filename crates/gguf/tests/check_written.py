"""Checks a file that examples/convert.rs has written, with the reference implementation.

    cargo run --release -p hadal-gguf --example convert -- IN.gguf OUT.gguf F32
    /tmp/gguf-venv/bin/python crates/gguf/tests/check_written.py IN.gguf OUT.gguf

Metadata must be the same value by value; a tensor of the same type the same bytes; a tensor of another type the bytes that
the package `gguf` makes of the numbers it reads from IN.
"""

import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize, quantize


def raw(tensor):
    return np.ascontiguousarray(tensor.data).view(np.uint8).ravel()


def main(first, second):
    before, after = GGUFReader(first), GGUFReader(second)
    fields = [[name for name in file.fields if not name.startswith("GGUF.")] for file in (before, after)]
    assert fields[0] == fields[1], "keys"
    for name in fields[0]:
        a, b = before.fields[name], after.fields[name]
        assert a.types == b.types and a.contents() == b.contents(), name
    assert [t.name for t in before.tensors] == [t.name for t in after.tensors], "tensors"
    same = converted = elements = 0
    for a, b in zip(before.tensors, after.tensors):
        assert list(a.shape) == list(b.shape), a.name
        if a.tensor_type == b.tensor_type:
            assert np.array_equal(raw(a), raw(b)), a.name
            same += 1
            continue
        expected = quantize(dequantize(a.data, a.tensor_type), b.tensor_type)
        assert np.array_equal(np.ascontiguousarray(expected).view(np.uint8).ravel(), raw(b)), a.name
        converted += 1
        elements += a.n_elements
    print(f"{second}: {len(fields[0])} keys, {same} tensors copied, {converted} converted ({elements} elements), all equal")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Writes tests/data/*.gguf with the reference implementation, the Python package `gguf`.

    python3 -m venv /tmp/gguf-venv && /tmp/gguf-venv/bin/pip install gguf==0.19.0 numpy
    /tmp/gguf-venv/bin/python crates/gguf/tests/make_goldens.py

`types.gguf` has, for each type that we read, blocks of random bytes under scales that are finite
(`packed.TYPE`), and their values by the package (`values.TYPE`, F32). `written.gguf` has numbers (`numbers`, F32) and
what the package makes of them in each type that we write (`written.TYPE`). `metadata.gguf` has a value of every type and
an alignment of its own.
"""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

HERE = Path(__file__).parent / "data"
# Where f16 scales stand in a block.
SCALES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}
ROWS = 3


def scales(random, count):
    """Large, small and subnormal ones, of both signs."""
    exponents = random.uniform(-26.0, 8.0, count)
    return (random.choice([-1.0, 1.0], count) * 2.0**exponents).astype(np.float16)


def packed(random, kind):
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = ROWS * (1 if elements == 256 else 2)
    data = random.integers(0, 256, (blocks, size), dtype=np.uint8)
    for at in SCALES[kind]:
        data[:, at : at + 2] = scales(random, blocks).view(np.uint8).reshape(blocks, 2)
    return data.reshape(ROWS, -1)


def save(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def types(random):
    writer = GGUFWriter(HERE / "types.gguf", "llama")
    halves = scales(random, 64 * ROWS).reshape(ROWS, 64)
    brains = quantize(halves.astype(np.float32) * np.float32(1e20), T.BF16)
    for kind, data in [(T.F16, halves), (T.BF16, brains), *((k, packed(random, k)) for k in SCALES)]:
        values = dequantize(data, kind)
        writer.add_tensor(f"packed.{kind.name}", data, raw_dtype=kind)
        writer.add_tensor(f"values.{kind.name}", np.ascontiguousarray(values, np.float32))
    writer.add_tensor("counted", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    save(writer)


def written(random):
    writer = GGUFWriter(HERE / "written.gguf", "llama")
    numbers = random.normal(0.0, 1.0, (4, 64)).astype(np.float32)
    numbers[1] *= np.float32(1e-6)
    numbers[2, :32] = 0.0
    # Exactly between two quants: 127 makes the scale 1.
    numbers[3, :32] = np.arange(32) - np.float32(15.5)
    numbers[3, 0] = 127.0
    writer.add_tensor("numbers", numbers)
    for kind in [T.F16, T.BF16, T.Q8_0]:
        writer.add_tensor(f"written.{kind.name}", quantize(numbers, kind), raw_dtype=kind)
    save(writer)


def metadata():
    writer = GGUFWriter(HERE / "metadata.gguf", "llama")
    writer.add_custom_alignment(64)
    writer.add_uint8("u8", 250)
    writer.add_int8("i8", -5)
    writer.add_uint16("u16", 65000)
    writer.add_int16("i16", -30000)
    writer.add_uint32("u32", 4000000000)
    writer.add_int32("i32", -2000000000)
    writer.add_uint64("u64", 2**63 + 1)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("f32", 0.1)
    writer.add_float64("f64", 0.1)
    writer.add_bool("bool", True)
    writer.add_string("string", "tiefe See, 深海, \n\"")
    writer.add_array("words", ["a", "", "ü"])
    writer.add_array("integers", [1, -2, 3])
    writer.add_array("numbers", [0.5, -1.5])
    writer.add_array("bools", [True, False])
    writer.add_key_value("shorts", [1, 2, 65535], V.ARRAY, sub_type=V.UINT16)
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_tensor("one", np.ones(5, dtype=np.float32))
    writer.add_tensor("two", np.full((2, 3), 2, dtype=np.float32))
    save(writer)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    random = np.random.default_rng(7)
    types(random)
    written(random)
    metadata()

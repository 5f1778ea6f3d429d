"""A small GGUF file with a value of every metadata type, written by the Python package gguf.

Made with Python 3.11, gguf 0.19.0, numpy 2.4.6:

    pip install gguf==0.19.0 numpy==2.4.6
    python make.py            # writes every.gguf beside this file
"""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

writer = GGUFWriter(Path(__file__).parent / "every.gguf", "test")
writer.add_custom_alignment(64)
T = GGUFValueType
for name, value, ty in [
    ("u8", 200, T.UINT8), ("i8", -100, T.INT8), ("u16", 60_000, T.UINT16), ("i16", -30_000, T.INT16),
    ("u32", 4_000_000_000, T.UINT32), ("i32", -2_000_000_000, T.INT32),
    ("u64", 1 << 63, T.UINT64), ("i64", -(1 << 62), T.INT64),
    ("f32", 0.1, T.FLOAT32), ("f64", 0.1, T.FLOAT64), ("bool", True, T.BOOL), ("string", "Grüße 🦙", T.STRING),
]:  # fmt: skip
    writer.add_key_value(f"one.{name}", value, ty)
for name, values, ty in [
    ("u8", [0, 255], T.UINT8), ("i8", [-128, 127], T.INT8), ("u16", [0, 65535], T.UINT16),
    ("i16", [-32768, 32767], T.INT16), ("u32", [0, 4294967295], T.UINT32),
    ("i32", [-2147483648, 2147483647], T.INT32), ("u64", [1, (1 << 64) - 1], T.UINT64),
    ("i64", [-(1 << 63), 5], T.INT64), ("f32", [0.5, -0.1], T.FLOAT32), ("f64", [0.5, -0.1], T.FLOAT64),
    ("bool", [True, False, True], T.BOOL), ("string", ["a", "", "Ġthe", "▁la"], T.STRING),
]:  # fmt: skip
    writer.add_key_value(f"many.{name}", values, T.ARRAY, ty)
writer.add_tensor("matrix", np.arange(6, dtype=np.float32).reshape(2, 3))
writer.add_tensor("halves", np.arange(8, dtype=np.float16).reshape(1, 2, 2, 2))
blocks = np.arange(3 * 2 * 34, dtype=np.uint8).reshape(3, 2 * 34)
writer.add_tensor("blocks", blocks, raw_dtype=GGMLQuantizationType.Q8_0)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

"""Golden blocks of every type that the Python package gguf can dequantize.

Made with Python 3.11, gguf 0.19.0, numpy 2.4.6:

    pip install gguf==0.19.0 numpy==2.4.6
    python make.py            # writes TYPE.bin beside this file

A file is n blocks, then the n * block_len values they mean as little-endian f32; n follows from the size of the file.
Block bytes are random; scale fields are replaced by values that a scale may have, ordinary and extreme (largest,
smallest subnormal, both zeros, infinity). No scale is NaN: the bits of a NaN that is computed with differ between
machines.
"""

from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

# Where the f16 scale fields of a block are.
F16_FIELDS = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.IQ1_S: [0], T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ2_S: [0], T.IQ3_XXS: [0], T.IQ3_S: [0],
    T.IQ4_NL: [0], T.IQ4_XS: [0], T.TQ1_0: [52], T.TQ2_0: [64],
}
F16_SCALES = [0x7BFF, 0x0001, 0x8000, 0x0000, 0x83FF, 0xFBFF, 0x7C00]  # fmt: skip
ORDINARY = 4


def f16_scales(rng, count):
    """Bits of `count` f16: ordinary ones, then the extreme ones."""
    ordinary = rng.normal(0, 0.05, ORDINARY).astype(np.float16).view(np.uint16)
    return np.resize(np.concatenate([ordinary, np.array(F16_SCALES, np.uint16)]), count)


def blocks_of(ty, rng):
    size = GGML_QUANT_SIZES[ty][1]
    if ty == T.F16:
        bits = rng.integers(0, 1 << 16, 500, dtype=np.uint16)
        bits = bits[(bits & 0x7C00) != 0x7C00]
        bits = np.concatenate([bits, np.array(F16_SCALES + [0xFC00], np.uint16)])
        return bits.view(np.uint8).reshape(-1, size)
    if ty == T.BF16:
        return rng.integers(0, 256, (600, size), dtype=np.uint8)
    count = ORDINARY + len(F16_SCALES)
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for number, field in enumerate(F16_FIELDS.get(ty, [])):
        scales = np.roll(f16_scales(rng, count), number)  # So that scale and minimum are not extreme together.
        blocks[:, field : field + 2] = scales.view(np.uint8).reshape(-1, 2)
    if ty == T.IQ1_M:  # The scale's four nibbles are the tops of four u16.
        packed = blocks[:, 48:].copy().view(np.uint16)
        scales = f16_scales(rng, count)
        for i in range(4):
            packed[:, i] = (packed[:, i] & 0x0FFF) | ((scales >> (4 * i)) & 15) << 12
        blocks[:, 48:] = packed.view(np.uint8)
    if ty == T.MXFP4:
        blocks[:, 0] = np.resize([0, 1, 2, 3, 100, 118, 120, 126, 127, 128, 254], count)
    if ty == T.NVFP4:
        scales = [0, 1, 7, 8, 0x0F, 0x10, 0x38, 0x40, 0x7E, 0x7F, 0x80, 0x87, 0xFF]
        blocks[:, :4] = np.resize(scales, (count, 4))
    return blocks


def main():
    here = Path(__file__).parent
    types = [T.F16, T.BF16, *F16_FIELDS, T.IQ1_M, T.MXFP4, T.NVFP4]
    for ty in sorted(types):
        rng = np.random.default_rng(int(ty))
        blocks = np.ascontiguousarray(blocks_of(ty, rng))
        with np.errstate(all="ignore"):
            values = dequantize(blocks, ty)
        assert values.size == len(blocks) * GGML_QUANT_SIZES[ty][0]
        (here / f"{ty.name}.bin").write_bytes(blocks.tobytes() + values.astype("<f4").tobytes())


main()

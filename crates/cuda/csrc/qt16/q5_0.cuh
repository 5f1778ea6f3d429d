// Q5_0 and Q5_1 in QT16: 2,048 B of nibbles, 512 B of fifth bits, then 16 × 8 × d, or {d, m}.
#pragma once

// Code of value i of 32: fifth bits in a word, nibbles behind it.
__device__ __forceinline__ uint32_t five_bits_of_32(const uint8_t* b, int i) {
    return nibble32(b + 4, i) | (b[i / 8] >> i % 8 & 1) << 4;
}

struct OfQ5_0 {
    using Plane = FiveBitPlane;
    using Meta = HalfScales<22>;
    static constexpr int FILE_BYTES = 176, ZERO = 16;
    __device__ static uint32_t code(const uint8_t* b, int k) { return five_bits_of_32(b + k / 32 * 22 + 2, k % 32); }
};
using Qt5_0 = QtGroups<OfQ5_0>;

struct OfQ5_1 {
    using Plane = FiveBitPlane;
    using Meta = HalfPairs<24>;
    static constexpr int FILE_BYTES = 192, ZERO = 0;
    __device__ static uint32_t code(const uint8_t* b, int k) { return five_bits_of_32(b + k / 32 * 24 + 4, k % 32); }
};
using Qt5_1 = QtGroups<OfQ5_1>;

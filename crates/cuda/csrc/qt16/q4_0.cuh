// Q4_0 and Q4_1 in QT16: 2,048 B of nibbles, then 16 × 8 × d, or {d, m}.
#pragma once

struct OfQ4_0 {
    using Plane = NibblePlane;
    using Meta = HalfScales<18>;
    static constexpr int FILE_BYTES = 144, ZERO = 8;
    __device__ static uint32_t code(const uint8_t* b, int k) { return nibble32(b + k / 32 * 18 + 2, k % 32); }
};
using Qt4_0 = QtGroups<OfQ4_0>;

struct OfQ4_1 {
    using Plane = NibblePlane;
    using Meta = HalfPairs<20>;
    static constexpr int FILE_BYTES = 160, ZERO = 0;
    __device__ static uint32_t code(const uint8_t* b, int k) { return nibble32(b + k / 32 * 20 + 4, k % 32); }
};
using Qt4_1 = QtGroups<OfQ4_1>;

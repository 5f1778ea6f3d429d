// Q8_0 in QT16: 4,096 B of codes q + 128, then 16 × 8 × d.
#pragma once

struct OfQ8_0 {
    using Plane = BytePlane;
    using Meta = HalfScales<34>;
    static constexpr int FILE_BYTES = 272, ZERO = 128;
    __device__ static uint32_t code(const uint8_t* b, int k) { return b[k / 32 * 34 + 2 + k % 32] ^ 128u; }
};
using Qt8_0 = QtGroups<OfQ8_0>;

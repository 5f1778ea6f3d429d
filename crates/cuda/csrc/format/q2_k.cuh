// Q2_K: groups of 16, (d · scale) · q − (dmin · min). Bytes: 16 scales (min high, scale low), 64 of codes, d, dmin.
#pragma once

// 2-bit code of value i of 256: 32 bytes per half of 128, bits 2s of byte i are value 32s + i of the half.
__device__ __forceinline__ int two_bits256(const uint8_t* qs, int i) {
    return qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

struct Q2_K : Coded<Q2_K> {
    static constexpr int VALUES = 256, BYTES = 84;
    static constexpr bool OFFSET = true;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        int scale = b[i / 16];
        c.s = f16_at(b + 80) * static_cast<float>(scale & 15);
        c.m = -(f16_at(b + 82) * static_cast<float>(scale >> 4));
#pragma unroll
        for (int j = 0; j < 8; ++j) c.q[j] = two_bits256(b + 16, i + j);
        return c;
    }
    // Of any codes, as for Q4_K; scales of few codes are large.
    __device__ static float bound(const uint8_t* b, int i) {
        const Codes c = codes(b, i);
        return fmaxf(fabsf(c.m), 16.0f * fabsf(c.s));
    }
};

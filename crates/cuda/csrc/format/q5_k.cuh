// Q5_K: as Q4_K with a fifth bit. Bytes: d, dmin, 12 of scales and minima, 32 of fifth bits, 128 of codes.
#pragma once

struct Q5_K : Coded<Q5_K> {
    static constexpr int VALUES = 256, BYTES = 176;
    static constexpr bool OFFSET = true;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        int scale, min;
        scale_min_6(b + 4, i / 32, scale, min);
        c.s = f16_at(b) * static_cast<float>(scale);
        c.m = -(f16_at(b + 2) * static_cast<float>(min));
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            int fifth = b[16 + (i + j) % 32] >> ((i + j) / 32) & 1;
            c.q[j] = four_bits256(b + 48, i + j) | fifth << 4;
        }
        return c;
    }
    // Of any codes, as for Q4_K.
    __device__ static float bound(const uint8_t* b, int i) {
        const Codes c = codes(b, i);
        return fmaxf(fabsf(c.m), 31.0f * fabsf(c.s));
    }
};

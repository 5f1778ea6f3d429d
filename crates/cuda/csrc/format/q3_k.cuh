// Q3_K: groups of 16, (d · (scale − 32)) · (q − 4). Bytes: 32 of third bits, 64 of codes, 12 of 6-bit scales, d.
#pragma once

struct Q3_K : Coded<Q3_K> {
    static constexpr int VALUES = 256, BYTES = 110;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        const uint8_t* packed = b + 96;
        int g = i / 16;
        int low = packed[g % 8] >> (g / 8 * 4) & 15;
        int high = packed[8 + g % 4] >> (g / 4 * 2) & 3;
        c.s = f16_at(b + 108) * static_cast<float>((low | high << 4) - 32);
        c.m = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            int third = b[(i + j) % 32] >> ((i + j) / 32) & 1;
            c.q[j] = (two_bits256(b + 32, i + j) | third << 2) - 4;
        }
        return c;
    }
    // Of any codes, as for Q2_K.
    __device__ static float bound(const uint8_t* b, int i) { return 16.0f * fabsf(codes(b, i).s); }
};

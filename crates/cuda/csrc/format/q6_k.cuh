// Q6_K: groups of 16, (d · scale) · (q − 32). Bytes: 128 of lower four bits, 64 of upper two, 16 scales, d.
#pragma once

struct Q6_K : Coded<Q6_K> {
    static constexpr int VALUES = 256, BYTES = 210;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        c.s = f16_at(b + 208) * static_cast<float>(static_cast<int8_t>(b[192 + i / 16]));
        c.m = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            int k = i + j;
            int low = b[k / 128 * 64 + k % 64] >> (k % 128 / 64 * 4) & 15;
            c.q[j] = (low | two_bits256(b + 128, k) << 4) - 32;
        }
        return c;
    }
    // Of any codes, as for Q4_K.
    __device__ static float bound(const uint8_t* b, int i) { return 32.0f * fabsf(codes(b, i).s); }
};

// IQ4_NL, IQ4_XS: codes pick one of 16 levels.
#pragma once

__device__ __forceinline__ void iq4_levels(int (&q)[8], const uint8_t* qs, int i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) q[j] = minfer_grids.iq4[qs[(i + j) % 16] >> ((i + j) / 16 * 4) & 15];
}

// Bytes: d, 16 of codes as in Q4_0.
struct IQ4_NL : Tuned<IQ4_NL> {
    static constexpr int VALUES = 32, BYTES = 18, ZERO = 128, MOST = 128;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        c.s = f16_at(b);
        c.m = 0.0f;
        iq4_levels(c.q, b + 2, i);
        return c;
    }
};

// Groups of 32, d · (scale − 32). Bytes: d, u16 of upper scale bits, 4 of lower ones, 8 × 16 of codes.
struct IQ4_XS : Coded<IQ4_XS> {
    static constexpr int VALUES = 256, BYTES = 136;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        int g = i / 32;
        int scale = (b[4 + g / 2] >> (g % 2 * 4) & 15) | static_cast<int>(u16_at(b + 2) >> (2 * g) & 3) << 4;
        c.s = f16_at(b) * static_cast<float>(scale - 32);
        c.m = 0.0f;
        iq4_levels(c.q, b + 8 + 16 * g, i % 32);
        return c;
    }
    // Of any codes, as for Q4_K.
    __device__ static float bound(const uint8_t* b, int i) { return 128.0f * fabsf(codes(b, i).s); }
};

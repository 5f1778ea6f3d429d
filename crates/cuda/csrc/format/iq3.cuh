// IQ3_XXS, IQ3_S: codes pick four magnitudes at once.
#pragma once

__device__ __forceinline__ Codes iq3_codes(float s, const uint8_t* low, const uint8_t* high, uint32_t signs) {
    Codes c;
    c.s = s;
    c.m = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) c.q[j] = with_sign(j < 4 ? low[j] : high[j - 4], signs, j);
    return c;
}

// Bytes: d, 64 codes, then per 32 values a u32 of four 7-bit signs and the scale.
struct IQ3_XXS : Coded<IQ3_XXS> {
    static constexpr int VALUES = 256, BYTES = 98;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int at) {
        int i = at / 8;
        uint32_t packed = u32_at(b + 66 + i / 4 * 4);
        float s = f16_at(b) * (0.5f + static_cast<float>(packed >> 28)) * 0.5f;
        const uint8_t* q = b + 2 + 2 * i;
        return iq3_codes(
            s, minfer_grids.iq3_xxs[q[0]], minfer_grids.iq3_xxs[q[1]], even_signs(packed >> (i % 4 * 7)));
    }
};

// Bytes: d, 64 of lower code bits, 8 of ninth bits, 32 of signs, 4 of scales.
struct IQ3_S : Coded<IQ3_S> {
    static constexpr int VALUES = 256, BYTES = 110;
    static constexpr bool OFFSET = false;
    __device__ static const uint8_t* grid(const uint8_t* b, int j) {
        return minfer_grids.iq3_s[b[2 + j] | (b[66 + j / 8] >> (j % 8) & 1) << 8];
    }
    __device__ static Codes codes(const uint8_t* b, int at) {
        int i = at / 8;
        float s = f16_at(b) * static_cast<float>(1 + 2 * (b[106 + i / 8] >> (i % 8 / 4 * 4) & 15));
        return iq3_codes(s, grid(b, 2 * i), grid(b, 2 * i + 1), b[74 + i]);
    }
};

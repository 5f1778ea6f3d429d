// IQ2_XXS, IQ2_XS, IQ2_S: codes pick eight magnitudes at once.
#pragma once

__device__ __forceinline__ Codes iq2_codes(float d, uint32_t scale, const uint8_t* grid, uint32_t signs) {
    Codes c;
    c.s = d * (0.5f + static_cast<float>(scale)) * 0.25f;
    c.m = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) c.q[j] = with_sign(grid[j], signs, j);
    return c;
}

// Bytes: d, then per 32 values four codes and a u32 of four 7-bit signs and the scale.
struct IQ2_XXS : Coded<IQ2_XXS> {
    static constexpr int VALUES = 256, BYTES = 66;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int at) {
        int i = at / 8;
        const uint8_t* q = b + 2 + i / 4 * 8;
        uint32_t packed = u32_at(q + 4);
        return iq2_codes(f16_at(b), packed >> 28, minfer_grids.iq2_xxs[q[i % 4]], even_signs(packed >> (i % 4 * 7)));
    }
};

// Bytes: d, 32 × u16 of code and signs, 8 of scales (a nibble per 16).
struct IQ2_XS : Coded<IQ2_XS> {
    static constexpr int VALUES = 256, BYTES = 74;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int at) {
        int i = at / 8;
        uint32_t packed = u16_at(b + 2 + 2 * i);
        uint32_t scale = b[66 + i / 4] >> (i % 4 / 2 * 4) & 15;
        return iq2_codes(f16_at(b), scale, minfer_grids.iq2_xs[packed & 511], even_signs(packed >> 9));
    }
};

// Bytes: d, 32 of lower code bits, 32 of signs, 8 of upper code bits, 8 of scales.
struct IQ2_S : Coded<IQ2_S> {
    static constexpr int VALUES = 256, BYTES = 82;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int at) {
        int i = at / 8;
        uint32_t scale = b[74 + i / 4] >> (i % 4 / 2 * 4) & 15;
        uint32_t code = b[2 + i] | (b[66 + i / 4] >> (i % 4 * 2) & 3) << 8;
        return iq2_codes(f16_at(b), scale, minfer_grids.iq2_s[code], b[34 + i]);
    }
};

// IQ1_S, IQ1_M: scale · (grid ± 1/8), grid in −1, 0, 1. Codes here are eight times that, under an eighth of the scale.
#pragma once

__device__ __forceinline__ Codes iq1_codes(float scale, int code, bool minus) {
    Codes c;
    c.s = scale * 0.125f;
    c.m = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) c.q[j] = 8 * minfer_grids.iq1[code][j] + (minus ? -1 : 1);
    return c;
}

// Bytes: d, 32 of lower code bits, 8 × u16 of upper bits, scale and sign of the shift.
struct IQ1_S : Coded<IQ1_S> {
    static constexpr int VALUES = 256, BYTES = 50;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int at) {
        int i = at / 8;
        uint32_t packed = u16_at(b + 34 + i / 4 * 2);
        float scale = f16_at(b) * static_cast<float>(2 * (packed >> 12 & 7) + 1);
        return iq1_codes(scale, b[2 + i] | (packed >> (i % 4 * 3) & 7) << 8, packed & 0x8000);
    }
};

// Bytes: 32 of lower code bits, 16 of nibbles (upper bits, sign of the shift), 4 × u16 of scales and d's nibbles.
struct IQ1_M : Coded<IQ1_M> {
    static constexpr int VALUES = 256, BYTES = 56;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int at) {
        int i = at / 8;
        const uint8_t* scales = b + 48;
        uint32_t d = 0;
        for (int j = 0; j < 4; ++j) d |= u16_at(scales + 2 * j) >> 12 << (4 * j);
        float unit = __half2float(__ushort_as_half(static_cast<unsigned short>(d)));
        float scale = unit * static_cast<float>(2 * (u16_at(scales + i / 8 * 2) >> (i % 8 / 2 * 3) & 7) + 1);
        uint32_t packed = b[32 + i / 2] >> (i % 2 * 4);
        return iq1_codes(scale, b[i] | (packed & 7) << 8, packed & 8);
    }
};

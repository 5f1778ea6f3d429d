// MXFP4, NVFP4: 4-bit floats, doubled to integers, under half of a power of two or of an 8-bit float.
#pragma once

// Half of UE4M3: bias 7, no sign, 0x7f is 0.
__device__ __forceinline__ float ue4m3_half(uint32_t x) {
    uint32_t exponent = x >> 3 & 15;
    float mantissa = static_cast<float>(x & 7);
    if (x == 0x7f) return 0.0f;
    if (exponent == 0) return mantissa * (1.0f / 1024.0f);
    return (1.0f + mantissa * 0.125f) * __uint_as_float((exponent + 119) << 23);
}

// Bytes: e, 16 of codes as in Q4_0.
struct MXFP4 : Tuned<MXFP4> {
    static constexpr int VALUES = 32, BYTES = 17, ZERO = 128, MOST = 12;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        c.s = e8m0_half(b[0]);
        c.m = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) c.q[j] = minfer_grids.fp4[nibble32(b + 1, i + j)];
        return c;
    }
};

// Groups of 16. Bytes: 4 scales, 4 × 8 of codes, low nibbles 0…7, high nibbles 8…15.
struct NVFP4 : Coded<NVFP4> {
    static constexpr int VALUES = 64, BYTES = 36;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        c.s = ue4m3_half(b[i / 16]);
        c.m = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) c.q[j] = minfer_grids.fp4[b[4 + i / 16 * 8 + j] >> (i % 16 / 8 * 4) & 15];
        return c;
    }
};

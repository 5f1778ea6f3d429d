// Q4_K: groups of 32, (d · scale) · q − (dmin · min). Bytes: d, dmin, 12 of 6-bit scales and minima, 128 of codes.
#pragma once

// Scale and minimum g of 8. The first four of each are the lower six bits of bytes 0…3 and 4…7; the last four have
// their lower four bits in bytes 8…11, the upper two in the top bits of bytes 0…7.
__device__ __forceinline__ void scale_min_6(const uint8_t* packed, int g, int& scale, int& min) {
    if (g < 4) {
        scale = packed[g] & 63;
        min = packed[g + 4] & 63;
    } else {
        scale = (packed[g + 4] & 15) | packed[g - 4] >> 6 << 4;
        min = packed[g + 4] >> 4 | packed[g] >> 6 << 4;
    }
}

// 4-bit code of value i of 256: 32 bytes per pair of groups, low nibbles the first.
__device__ __forceinline__ int four_bits256(const uint8_t* qs, int i) {
    return qs[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
}

struct Q4_K : Coded<Q4_K> {
    static constexpr int VALUES = 256, BYTES = 144;
    static constexpr bool OFFSET = true;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        int scale, min;
        scale_min_6(b + 4, i / 32, scale, min);
        c.s = f16_at(b) * static_cast<float>(scale);
        c.m = -(f16_at(b + 2) * static_cast<float>(min));
#pragma unroll
        for (int j = 0; j < 8; ++j) c.q[j] = four_bits256(b + 16, i + j);
        return c;
    }
    // Of any codes: the tuned kernels' scales must stay halves even if nothing is multiplied with them.
    __device__ static float bound(const uint8_t* b, int i) {
        const Codes c = codes(b, i);
        return fmaxf(fabsf(c.m), 15.0f * fabsf(c.s));
    }
};

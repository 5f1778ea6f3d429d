// Q5_1: 32 values d · q + m, codes as in Q5_0.
#pragma once

struct Q5_1 : Tuned<Q5_1> {
    static constexpr int VALUES = 32, BYTES = 24, ZERO = 0, MOST = 31;
    static constexpr bool OFFSET = true;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        c.s = f16_at(b);
        c.m = f16_at(b + 2);
        uint32_t high = u32_at(b + 4);
#pragma unroll
        for (int j = 0; j < 8; ++j) c.q[j] = nibble32(b + 8, i + j) | static_cast<int>(high >> (i + j) & 1) << 4;
        return c;
    }
};

// Q4_1: 32 values d · q + m, nibbles as in Q4_0.
#pragma once

struct Q4_1 : Tuned<Q4_1> {
    static constexpr int VALUES = 32, BYTES = 20, ZERO = 0, MOST = 15;
    static constexpr bool OFFSET = true;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        c.s = f16_at(b);
        c.m = f16_at(b + 2);
#pragma unroll
        for (int j = 0; j < 8; ++j) c.q[j] = nibble32(b + 4, i + j);
        return c;
    }
};

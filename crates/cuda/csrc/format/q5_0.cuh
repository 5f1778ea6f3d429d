// Q5_0: 32 values d · (q − 16); bit i of a word is the fifth bit of value i.
#pragma once

struct Q5_0 : Tuned<Q5_0> {
    static constexpr int VALUES = 32, BYTES = 22, ZERO = 16, MOST = 16;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        c.s = f16_at(b);
        c.m = 0.0f;
        uint32_t high = u32_at(b + 2);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            c.q[j] = (nibble32(b + 6, i + j) | static_cast<int>(high >> (i + j) & 1) << 4) - 16;
        }
        return c;
    }
};

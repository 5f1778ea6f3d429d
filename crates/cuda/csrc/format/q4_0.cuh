// Q4_0: 32 values d · (q − 8). Byte i holds value i low and value i + 16 high.
#pragma once

struct Q4_0 : Tuned<Q4_0> {
    static constexpr int VALUES = 32, BYTES = 18, ZERO = 8, MOST = 16;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        c.s = f16_at(b);
        c.m = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) c.q[j] = nibble32(b + 2, i + j) - 8;
        return c;
    }
};

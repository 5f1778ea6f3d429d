// Q8_0: 32 values d · q.
#pragma once

struct Q8_0 : Tuned<Q8_0> {
    static constexpr int VALUES = 32, BYTES = 34, ZERO = 128, MOST = 128;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        c.s = f16_at(b);
        c.m = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) c.q[j] = static_cast<int8_t>(b[2 + i + j]);
        return c;
    }
};

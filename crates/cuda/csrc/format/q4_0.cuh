// Q4_0: 32 values d · (q − 8). Byte i holds value i low and value i + 16 high.
#pragma once

// Nibble code of value i of 32 in 16 bytes.
__device__ __forceinline__ int nibble32(const uint8_t* qs, int i) { return qs[i % 16] >> (i / 16 * 4) & 15; }

struct Q4_0 : Coded<Q4_0> {
    static constexpr int VALUES = 32, BYTES = 18;
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

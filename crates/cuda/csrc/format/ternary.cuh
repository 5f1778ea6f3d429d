// TQ1_0, TQ2_0, Q1_0, Q2_0: codes of two, three or four values under one scale.
#pragma once

// Five ternary digits a byte. Bytes: 48 (values i + 32n of byte i < 32; 160 + i + 16n of byte 32 + i), 4 (240 + i + 4n
// of byte 48 + i), d.
struct TQ1_0 : Coded<TQ1_0> {
    static constexpr int VALUES = 256, BYTES = 54;
    static constexpr bool OFFSET = false;
    __device__ static int digit(uint32_t byte, int n) {
        constexpr uint32_t POWERS = 1 | 3 << 8 | 9 << 16 | 27u << 24;
        uint32_t power = n == 4 ? 81 : POWERS >> (8 * n) & 255;
        return static_cast<int>((byte * power & 255) * 3 >> 8) - 1;
    }
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        c.s = f16_at(b + 52);
        c.m = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            int k = i + j;
            int byte = k < 160 ? k % 32 : k < 240 ? 32 + (k - 160) % 16 : 48 + k % 4;
            int n = k < 160 ? k / 32 : k < 240 ? (k - 160) / 16 : (k - 240) / 4;
            c.q[j] = digit(b[byte], n);
        }
        return c;
    }
};

// Bytes: 64 of 2-bit codes as in Q2_K, d.
struct TQ2_0 : Coded<TQ2_0> {
    static constexpr int VALUES = 256, BYTES = 66;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        c.s = f16_at(b + 64);
        c.m = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) c.q[j] = two_bits256(b, i + j) - 1;
        return c;
    }
};

// Bytes: d, 16 of bits in order.
struct Q1_0 : Coded<Q1_0> {
    static constexpr int VALUES = 128, BYTES = 18;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        c.s = f16_at(b);
        c.m = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) c.q[j] = b[2 + i / 8] >> j & 1 ? 1 : -1;
        return c;
    }
};

// Bytes: d, 16 of 2-bit codes in order.
struct Q2_0 : Coded<Q2_0> {
    static constexpr int VALUES = 64, BYTES = 18;
    static constexpr bool OFFSET = false;
    __device__ static Codes codes(const uint8_t* b, int i) {
        Codes c;
        c.s = f16_at(b);
        c.m = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) c.q[j] = (b[2 + (i + j) / 4] >> (j % 4 * 2) & 3) - 1;
        return c;
    }
};

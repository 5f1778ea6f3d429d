// F32, F16, BF16: single values.
#pragma once

struct F32 : Plain<F32> {
    static constexpr int VALUES = 1, BYTES = 4;
    __device__ static float value(const uint8_t* p) { return __uint_as_float(u32_at(p)); }
};

struct F16 : Plain<F16> {
    static constexpr int VALUES = 1, BYTES = 2;
    __device__ static float value(const uint8_t* p) { return f16_at(p); }
};

struct BF16 : Plain<BF16> {
    static constexpr int VALUES = 1, BYTES = 2;
    __device__ static float value(const uint8_t* p) { return __uint_as_float(u16_at(p) << 16); }
};

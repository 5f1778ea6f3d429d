// What all matrix products share: the profile's order of addition, and what happens to a finished sum.
//
// y[t][n] = Σ_k w[n][k] · x[t][k], w and x in half precision, each times a power of two. A *segment* of K is one chain
// of m16n8k16 tensor-core steps over ascending k, from zero; segments are added in ascending order. Their number is a
// function of K alone (see minfer_cuda's `k_segments`), and so is where they begin, so every kernel that computes a
// product gives it the same bits, for one token or many.
#pragma once
#include "common.cuh"

// K is in units of 256; segment s of them begins at this unit.
__device__ __forceinline__ int segment_begin(int units, int segments, int s) { return s * units / segments; }

enum class Finish : int {
    Store = 0,     // out = y
    Residual = 1,  // out = out + factor · y
    Logits = 2,    // out = soft_cap(factor · y)
};

struct MatmulArgs {
    const uint8_t* w;      // the matrix in its layout
    const half* x;         // [tokens][x_stride] at `fragment_place`, zero behind its columns to the next multiple of 256
    const float* x_unscale;  // [tokens]: what undoes each row's power of two
    const float* bias;     // [rows], or null
    float* out;            // [tokens][out_stride]
    uint64_t row_bytes;
    int rows;
    int cols;
    int x_stride;
    int out_stride;
    int tokens;
    int segments;
    float w_scale;
    float w_unscale;
    int finish;
    float factor;
    float soft_cap;  // 0: none
};

// What becomes of a product `y`; `before` is what lies where it goes.
__device__ __forceinline__ float finish_value(Finish finish, float y, float factor, float soft_cap, float before) {
    switch (finish) {
        case Finish::Residual: return before + factor * y;
        case Finish::Logits:
            y *= factor;
            return soft_cap > 0.0f ? soft_cap * tanhf(y / soft_cap) : y;
        default: return y;
    }
}

__device__ __forceinline__ void finish_one(const MatmulArgs& a, int token, int row, float sum) {
    // Both are powers of two.
    float y = sum * (a.w_unscale * a.x_unscale[token]);
    if (a.bias) y += a.bias[row];
    float* out = a.out + static_cast<size_t>(token) * a.out_stride + row;
    const Finish finish = static_cast<Finish>(a.finish);
    *out = finish_value(finish, y, a.factor, a.soft_cap, finish == Finish::Residual ? *out : 0.0f);
}

// Kernels that read a matrix outside of products: rows of an embedding, and the largest magnitude of a matrix.
#include "format.cuh"

struct EmbedArgs {
    const uint8_t* table;
    const uint32_t* tokens;
    float* x;         // [tokens][cols]
    uint32_t* clear;  // two words that a step begins with as zero
    uint64_t row_bytes;
    int cols;
    float scale;
};

// x[t] = table[tokens[t]] · scale, exactly as the reference dequantizes. A block of 128 threads per token.
template <class F>
__device__ __forceinline__ void embed(const EmbedArgs& a) {
    grid_wait();
    if (blockIdx.x == 0 && threadIdx.x < 2) a.clear[threadIdx.x] = 0;
    const uint8_t* row = a.table + a.tokens[blockIdx.x] * a.row_bytes;
    float* x = a.x + static_cast<size_t>(blockIdx.x) * a.cols;
    for (int k = threadIdx.x * 8; k < a.cols; k += blockDim.x * 8) {
        if (k + 8 <= a.cols) {
            float v[8];
            F::octet_f32(row + k / F::VALUES * F::BYTES, k % F::VALUES, v);
#pragma unroll
            for (int j = 0; j < 8; ++j) x[k + j] = v[j] * a.scale;
        }
    }
}

struct BoundArgs {
    const uint8_t* w;
    uint32_t* most;  // bits of a float, not negative: their order is that of the floats
    uint64_t row_bytes;
    int rows;
    int cols;
};

template <class F>
__device__ __forceinline__ void bound(const BoundArgs& a) {
    grid_wait();
    float most = 0.0f;
    for (int r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const uint8_t* row = a.w + r * a.row_bytes;
        for (int k = threadIdx.x * 8; k < a.cols; k += blockDim.x * 8) {
            most = fmaxf(most, F::bound(row + k / F::VALUES * F::BYTES, k % F::VALUES));
        }
    }
    most = warp_max(most);
    if (threadIdx.x % WARP == 0) atomicMax(a.most, __float_as_uint(most));
}

#define KERNELS(Format, name) \
    extern "C" __global__ void __launch_bounds__(128) embed_##name(const EmbedArgs a) { embed<Format>(a); } \
    extern "C" __global__ void __launch_bounds__(128) bound_##name(const BoundArgs a) { bound<Format>(a); }
MINFER_FORMATS(KERNELS)

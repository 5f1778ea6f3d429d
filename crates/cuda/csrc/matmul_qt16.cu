// Kernels matmul_qt16_<type>_n8 and _n32, and repack_<type>, which makes QT16 of the file's layout.
#include "matmul/qt16.cuh"

struct RepackArgs {
    const uint8_t* from;  // rows of blocks, as in the file
    uint32_t* to;
    uint64_t row_bytes;
    int rows;
    int cols;
};

// A block of 256 threads per unit.
template <class U>
__device__ __forceinline__ void repack(const RepackArgs& a) {
    grid_wait();
    const int units = (a.cols + QT_K - 1) / QT_K;
    const int group = blockIdx.x / units, unit = blockIdx.x % units;
    const uint8_t* rows[QT_ROWS];
#pragma unroll
    for (int r = 0; r < QT_ROWS; ++r) {
        const int row = group * QT_ROWS + r;
        rows[r] = row < a.rows ? a.from + row * a.row_bytes + static_cast<size_t>(unit) * U::FILE_BYTES : nullptr;
    }
    // A row's last values, if they fill no unit, with zero blocks behind them.
    __shared__ uint8_t rest[QT_ROWS][U::FILE_BYTES];
    const int values = min(a.cols - unit * QT_K, QT_K);
    if (values < QT_K) {
        const int bytes = U::FILE_BYTES * values / QT_K;
        for (int i = threadIdx.x; i < QT_ROWS * U::FILE_BYTES; i += blockDim.x) {
            const int r = i / U::FILE_BYTES, at = i % U::FILE_BYTES;
            rest[r][at] = rows[r] && at < bytes ? rows[r][at] : 0;
        }
        __syncthreads();
        for (int r = 0; r < QT_ROWS; ++r) rows[r] = rest[r];
    }
    for (int w = threadIdx.x; w < U::BYTES / 4; w += blockDim.x) {
        a.to[static_cast<size_t>(blockIdx.x) * (U::BYTES / 4) + w] = U::pack(rows, w);
    }
}

#define KERNELS(Unit, name) \
    extern "C" __global__ void __launch_bounds__(256, 2) matmul_qt16_##name##_n8(const MatmulArgs a) { \
        qt16_matmul::body<qt16_matmul::Half, Unit, 1>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(256, 1) matmul_qt16_##name##_n32(const MatmulArgs a) { \
        qt16_matmul::body<qt16_matmul::Half, Unit, 4>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(256) repack_##name(const RepackArgs a) { repack<Unit>(a); }
MINFER_QT16(KERNELS)

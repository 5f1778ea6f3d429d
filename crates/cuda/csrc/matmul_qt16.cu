// Kernels matmul_qt16_<type>_n8 and _n32, and repack_<type>, which makes QT16 of the file's layout.
#include "matmul/qt16.cuh"

struct RepackArgs {
    const uint8_t* from;  // rows of blocks, as in the file
    uint32_t* to;
    uint64_t row_bytes;
    int rows;
    int cols;
    float scale;  // the tensor's power of two, for those that become halves
    int unused;
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

// The bits of the half that two bytes of the file become.
struct FromHalf {
    __device__ static uint32_t bits(const uint8_t* p, float) { return p[0] | p[1] << 8; }
};
// Eight bits of eleven: exact where the half is normal, and for what is smaller down to its last bit.
struct FromBfloat {
    __device__ static uint32_t bits(const uint8_t* p, float scale) {
        const float v = __uint_as_float(static_cast<uint32_t>(p[0] | p[1] << 8) << 16);
        return __half_as_ushort(__float2half_rn(v * scale));
    }
};

// 256 columns of a row group, in a block of 256 threads.
template <class From>
__device__ __forceinline__ void repack_halves(const RepackArgs& a) {
    grid_wait();
    const int units = (a.cols + QT_K - 1) / QT_K;
    const int group = blockIdx.x / units, k0 = blockIdx.x % units * QT_K;
    uint32_t* to = a.to + static_cast<size_t>(blockIdx.x) * (QT_ROWS * QT_K / 2);
    // Word w of a unit: register w % 4 of lane w / 4 % 32 in step w / 128.
    for (int w = threadIdx.x; w < QT_ROWS * QT_K / 2; w += blockDim.x) {
        const int lane = w / 4 % WARP, n = w % 4;
        const int row = group * QT_ROWS + qt_row(lane, n), k = k0 + w / 128 * 16 + qt_k(lane, n);
        const uint8_t* from = a.from + row * a.row_bytes + 2 * static_cast<size_t>(k);
        const bool low = row < a.rows && k < a.cols, high = row < a.rows && k + 1 < a.cols;
        to[w] = (low ? From::bits(from, a.scale) : 0) | (high ? From::bits(from + 2, a.scale) << 16 : 0);
    }
}

#define KERNELS(Unit, name) \
    extern "C" __global__ void __launch_bounds__(256, 2) matmul_qt16_##name##_n8(const MatmulArgs a) { \
        qt16_matmul::body<qt16_matmul::Half, Unit, 1>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(256, 1) matmul_qt16_##name##_n32(const MatmulArgs a) { \
        qt16_matmul::body<qt16_matmul::Half, Unit, 4>(a); \
    }
MINFER_QT16(KERNELS)

#define REPACK(Unit, name) \
    extern "C" __global__ void __launch_bounds__(256) repack_##name(const RepackArgs a) { repack<Unit>(a); }
MINFER_QT16_CODES(REPACK)
extern "C" __global__ void __launch_bounds__(256) repack_f16(const RepackArgs a) { repack_halves<FromHalf>(a); }
extern "C" __global__ void __launch_bounds__(256) repack_bf16(const RepackArgs a) { repack_halves<FromBfloat>(a); }

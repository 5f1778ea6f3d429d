// Kernels matmul_file_<type>_n8 and _n32: 8 and 32 tokens a block of a matrix in the file's layout.
#include "matmul/file.cuh"

#define KERNELS(Format, name) \
    extern "C" __global__ void __launch_bounds__(256, 2) matmul_file_##name##_n8(const MatmulArgs a) { \
        file_matmul::body<Format, 1>(a); \
    } \
    extern "C" __global__ void __launch_bounds__(256, 2) matmul_file_##name##_n32(const MatmulArgs a) { \
        file_matmul::body<Format, 4>(a); \
    }
MINFER_FILE_FORMATS(KERNELS)

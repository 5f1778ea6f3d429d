// The int8 profile's products of one token.
#include "decode.cuh"

extern "C" __global__ void __launch_bounds__(PREPARE_THREADS, 2)
    decode_matmul_int8(const __grid_constant__ DecodeArgs a) {
    decode::body<decode::Int8>(a);
}

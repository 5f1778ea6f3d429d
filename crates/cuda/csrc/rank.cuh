// The order in which the sampler ranks tokens, as integers.
#pragma once
#include "common.cuh"

// A number that ascends as the sampler ranks tokens: the logit's bits in the floats' order, above the id's complement,
// so that the lower of two equals ranks higher. Adding 0 makes -0 equal to 0. NaN is above all.
__device__ __forceinline__ unsigned long long rank_of(float logit, int id) {
    const uint32_t bits = __float_as_uint(logit + 0.0f);
    uint32_t order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    if (isnan(logit)) order = ~0u;
    return static_cast<unsigned long long>(order) << 32 | ~static_cast<uint32_t>(id);
}

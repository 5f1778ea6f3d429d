// Where the tokens of a step belong, in device memory: a captured graph reads the same addresses for every step.
#pragma once
#include "common.cuh"

struct Spans {
    const uint32_t* span_of;   // [tokens]
    const uint32_t* position;  // [tokens]
    const uint32_t* start;     // [spans]: first token
    const uint32_t* len;       // [spans]
    // Per span and cache group: first logical block, and where the physical ones begin in `blocks`.
    const uint32_t* first_block;  // [spans][groups]
    const uint32_t* table;        // [spans][groups]
    const uint32_t* blocks;
    uint32_t spans;
    uint32_t groups;
};

// Keys or values of one layer and head begin at `base + head · head_stride`, those of a block at block_stride.
__device__ __forceinline__ uint32_t physical_block(const Spans& s, uint32_t span, uint32_t group, uint32_t block) {
    const uint32_t entry = span * s.groups + group;
    return s.blocks[s.table[entry] + block - s.first_block[entry]];
}

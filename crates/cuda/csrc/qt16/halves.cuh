// F16 and BF16 in QT16: halves as they go into a step. A unit is 16 rows × 128 k in 4,096 B: a lane owns 16 bytes of each
// k16 step, the four registers of its A fragment.
//
// F16 is what the file has. BF16 became halves at load, times the tensor's power of two, see `repack_halves`.
#pragma once

struct QtHalf {
    static constexpr int K = 128, BYTES = 4096;
    static constexpr bool CODES = false, HAS_MIN = false;

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* unit, int lane) {
#pragma unroll
        for (int i = 0; i < 8; ++i) r.q[i] = Read::b16(unit + i * 512 + lane * 16);
    }

    // Nothing to multiply with: what undoes the tensor's power of two is applied to sums.
    struct Scales {};
    struct Slab {};
    __device__ static void scales(Scales&, const QtRaw&, int, float) {}
    __device__ static void slab(Slab&, const Scales&, int, int) {}

    __device__ static void fragment(uint32_t (&a)[4], const QtRaw& r, const Slab&, int slab, int step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = word_of(r.q[4 * slab + step], i);
    }

    __device__ static void min_fragment(uint32_t (&)[4], const Scales&) {}
};

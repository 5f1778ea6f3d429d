// Q2_K in QT16: 1,024 B of codes, 16 × 16 B of scales and minima, 16 × {d, dmin}.
#pragma once

// Two bits of value k of 256: 32 bytes per half of 128.
__device__ __forceinline__ uint32_t two_bits_of_256(const uint8_t* qs, int k) {
    return qs[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3;
}

struct Q2KScales {
    static constexpr int BYTES = 320, GROUPS = 4;
    static constexpr bool INTEGER = true, OFFSET = true;

    __device__ static uint32_t pack(const uint8_t* const (&rows)[QT_ROWS], int w) {
        const uint8_t* b = rows[w < 64 ? w / 4 : w - 64];
        return b ? word_at(b + (w < 64 ? w % 4 * 4 : 80)) : 0;
    }

    // Scales and minima of slab t, and {d, dmin}, of rows g and g + 8.
    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* meta, int lane) {
        const uint8_t* d = meta + 256 + lane / 4 * 4;
        r.rest = make_uint4(Read::b4(meta + lane * 4), Read::b4(meta + 128 + lane * 4), Read::b4(d), Read::b4(d + 32));
    }

    __device__ static float unit(const QtRaw& r, int, int row) { return __low2float(as_half2(row ? r.rest.w : r.rest.z)); }
    __device__ static int whole(const QtRaw& r, int, int row, int j) {
        return static_cast<int>((row ? r.rest.y : r.rest.x) >> (8 * j) & 15);
    }
    __device__ static float scale(const QtRaw& r, int lane, int row, int j) {
        return unit(r, lane, row) * static_cast<float>(whole(r, lane, row, j));
    }
    __device__ static float offset(const QtRaw& r, int row, int j) { return min_factor(r, row) * minimum(r, row, j); }
    __device__ static float minimum(const QtRaw& r, int row, int j) {
        return static_cast<float>((row ? r.rest.y : r.rest.x) >> (8 * j + 4) & 15);
    }
    __device__ static float min_factor(const QtRaw& r, int row) {
        return -__high2float(as_half2(row ? r.rest.w : r.rest.z));
    }
};

struct OfQ2_K {
    using Plane = PairPlane;
    using Meta = Q2KScales;
    static constexpr int FILE_BYTES = 84, ZERO = 0;
    __device__ static uint32_t code(const uint8_t* b, int k) { return two_bits_of_256(b + 16, k); }
};
using Qt2K = QtGroups<OfQ2_K>;

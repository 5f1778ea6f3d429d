// Q6_K in QT16: 2,048 B of nibbles, 1,024 B of upper two bits, 16 × 16 B of scales, 16 × d.
#pragma once

struct Q6KScales {
    static constexpr int BYTES = 288, GROUPS = 4;
    static constexpr bool INTEGER = true, OFFSET = false;

    __device__ static uint32_t pack(const uint8_t* const (&rows)[QT_ROWS], int w) {
        if (w < 64) return rows[w / 4] ? word_at(rows[w / 4] + 192 + w % 4 * 4) : 0;
        return half_pair(rows[w % 8 * 2], rows[w % 8 * 2 + 1], 208);
    }

    // Scales of slab t, and d, of rows g and g + 8.
    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* meta, int lane) {
        const uint8_t* d = meta + 256 + lane / 8 * 4;
        r.rest = make_uint4(Read::b4(meta + lane * 4), Read::b4(meta + 128 + lane * 4), Read::b4(d), Read::b4(d + 16));
    }

    __device__ static float unit(const QtRaw& r, int lane, int row) {
        const half2 d = as_half2(row ? r.rest.w : r.rest.z);
        return lane / 4 % 2 ? __high2float(d) : __low2float(d);
    }
    __device__ static int whole(const QtRaw& r, int, int row, int j) {
        return static_cast<int8_t>((row ? r.rest.y : r.rest.x) >> (8 * j));
    }
    __device__ static float scale(const QtRaw& r, int lane, int row, int j) {
        return unit(r, lane, row) * static_cast<float>(whole(r, lane, row, j));
    }
    __device__ static float offset(const QtRaw&, int, int) { return 0.0f; }
};

struct OfQ6_K {
    using Plane = SixBitPlane;
    using Meta = Q6KScales;
    static constexpr int FILE_BYTES = 210, ZERO = 32;
    __device__ static uint32_t code(const uint8_t* b, int k) {
        const uint32_t low = b[k / 128 * 64 + k % 64] >> (k % 128 / 64 * 4) & 15;
        const uint32_t high = b[128 + k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3;
        return low | high << 4;
    }
};
using Qt6K = QtGroups<OfQ6_K>;

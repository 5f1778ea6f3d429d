// Q3_K in QT16: 1,024 B of lower two bits, 512 B of third bits, 16 × 12 B of scales as in the file, 16 × d.
#pragma once

struct Q3KScales {
    static constexpr int BYTES = 224, GROUPS = 4;
    static constexpr bool INTEGER = true, OFFSET = false;

    __device__ static uint32_t pack(const uint8_t* const (&rows)[QT_ROWS], int w) {
        if (w < 48) return rows[w / 3] ? word_at(rows[w / 3] + 96 + w % 3 * 4) : 0;
        return half_pair(rows[(w - 48) * 2], rows[(w - 48) * 2 + 1], 108);
    }

    // Of rows g and g + 8: the 6-bit scales of slab t, their lower four bits in one of two words, the upper two in the
    // third; and d.
    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* meta, int lane) {
        const int t = lane % 4;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const uint8_t* packed = meta + lane / 4 * 12 + row * 96;
            const uint32_t low = Read::b4(packed + t % 2 * 4) >> (t / 2 * 4), high = Read::b4(packed + 8) >> (2 * t);
            (row ? r.rest.y : r.rest.x) = (low & 0x0f0f0f0f) | (high & 0x03030303) << 4;
        }
        const uint8_t* d = meta + 192 + lane / 8 * 4;
        r.rest.z = Read::b4(d);
        r.rest.w = Read::b4(d + 16);
    }

    __device__ static float unit(const QtRaw& r, int lane, int row) {
        const half2 d = as_half2(row ? r.rest.w : r.rest.z);
        return lane / 4 % 2 ? __high2float(d) : __low2float(d);
    }
    __device__ static int whole(const QtRaw& r, int, int row, int j) {
        return static_cast<int>((row ? r.rest.y : r.rest.x) >> (8 * j) & 63) - 32;
    }
    __device__ static float scale(const QtRaw& r, int lane, int row, int j) {
        return unit(r, lane, row) * static_cast<float>(whole(r, lane, row, j));
    }
    __device__ static float offset(const QtRaw&, int, int) { return 0.0f; }
};

struct OfQ3_K {
    using Plane = ThreeBitPlane;
    using Meta = Q3KScales;
    static constexpr int FILE_BYTES = 110, ZERO = 4;
    __device__ static uint32_t code(const uint8_t* b, int k) {
        return two_bits_of_256(b + 32, k) | (b[k % 32] >> (k / 32) & 1) << 2;
    }
};
using Qt3K = QtGroups<OfQ3_K>;

// Q4_K and Q5_K in QT16: 2,048 B of nibbles, Q5_K's 512 B of fifth bits, then 16 × {d, dmin, 12 B of scales and minima} as
// in the file.
#pragma once

// T has its Plane, the bytes FILE_BYTES of a block, and code(b, k), its value k.
template <class T>
struct QtK {
    using Plane = typename T::Plane;
    static constexpr int K = QT_K, META = Plane::BYTES, BYTES = META + 256, FILE_BYTES = T::FILE_BYTES;

    // Word w of a unit, from the blocks of its 16 rows (null beyond the matrix).
    __device__ static uint32_t pack(const uint8_t* const (&rows)[QT_ROWS], int w) {
        if (w < META / 4) return Plane::pack([&](int r, int k) { return rows[r] ? T::code(rows[r], k) : 0; }, w);
        const int at = w - META / 4;
        return rows[at / 4] ? word_at(rows[at / 4] + at % 4 * 4) : 0;
    }

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* unit, int lane) {
        Plane::template load<Read>(r, unit, lane);
        load_meta<Read>(r, unit, lane);
    }

    // d, dmin and the packed scales of rows g and g + 8.
    template <class Read>
    __device__ static void load_meta(QtRaw& r, const uint8_t* unit, int lane) {
        r.more[0] = Read::b16(unit + META + lane / 4 * 16);
        r.more[1] = Read::b16(unit + META + (lane / 4 + 8) * 16);
    }

    // Weights are two terms: q · s rounded once, and a minimum per group, which one more step multiplies with the sums
    // of the input's groups. A code is read as the half q · 2^-24, hence s · 2^24; s is a multiple of 16 of a half, so
    // that codes in the upper nibble need no shift.
    static constexpr bool CODES = true, HAS_MIN = true;

    // Of groups 2t and 2t + 1: s (row g, low) and s / 16 (row g + 8, high), times 2^24; minima of rows g and g + 8,
    // negated.
    struct Scales {
        uint32_t s[2], m[2];
    };

    // Packed integers of groups 2t and 2t + 1 of row g or g + 8: scales, and minima.
    __device__ static void integers(uint32_t (&scale)[2], uint32_t (&minimum)[2], const QtRaw& r, int lane, int row) {
        const int t = lane % 4, shift = 16 * (t % 2);
        // Bytes 0…3, 4…7 and 8…11 of the packed scales; groups 2t and 2t + 1 are bytes 2t % 4 and the next.
        const uint32_t low = r.more[row].y, mid = r.more[row].z, high = r.more[row].w;
        const uint32_t sc = t < 2 ? low & 0x3f3f3f3f : (high & 0x0f0f0f0f) | (low >> 2 & 0x30303030);
        const uint32_t mn = t < 2 ? mid & 0x3f3f3f3f : (high >> 4 & 0x0f0f0f0f) | (mid >> 2 & 0x30303030);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            scale[j] = sc >> (shift + 8 * j) & 255;
            minimum[j] = mn >> (shift + 8 * j) & 255;
        }
    }

    // Scales, and minima negated, of groups 2t and 2t + 1 of rows g and g + 8: d and dmin times the packed integers.
    __device__ static void factors(float (&s)[2][2], float (&m)[2][2], const QtRaw& r, int lane, float d_scale,
                                   float min_scale) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const half2 d = as_half2(r.more[row].x);
            const float unit = __low2float(d) * d_scale, unit_min = __high2float(d) * -min_scale;
            uint32_t sc[2], mn[2];
            integers(sc, mn, r, lane, row);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                s[row][j] = unit * static_cast<float>(sc[j]);
                m[row][j] = unit_min * static_cast<float>(mn[j]);
            }
        }
    }

    __device__ static void scales(Scales& out, const QtRaw& r, int lane, float scale) {
        float s[2][2], m[2][2];
        factors(s, m, r, lane, scale * (QT_CODE / 16.0f), scale);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            out.s[j] = as_u32(__hmul2(__floats2half2_rn(s[0][j], s[1][j]), __floats2half2_rn(16.0f, 1.0f)));
            out.m[j] = as_u32(__floats2half2_rn(m[j][0], m[j][1]));
        }
    }

    // What a k64 slab needs of the scales: those of its two groups, from the lane of the quad that has them.
    struct Slab {
        half2 s[2];
    };

    __device__ static void slab(Slab& out, const Scales& all, int slab, int lane) {
        const int from = (lane & ~3) | slab;
#pragma unroll
        for (int j = 0; j < 2; ++j) out.s[j] = as_half2(__shfl_sync(~0u, all.s[j], from));
    }

    __device__ static void fragment(uint32_t (&a)[4], const QtRaw& r, const Slab& scales, int slab, int step) {
        const half2 s[2] = {__low2half2(scales.s[step / 2]), __high2half2(scales.s[step / 2])};
        Plane::codes(a, r, slab, step);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = as_u32(__hmul2(as_half2(a[i]), s[i % 2]));
    }

    // The step of the minima: k 0…7 are the groups, k 8…15 the same again, for the rest of their sums.
    __device__ static void min_fragment(uint32_t (&a)[4], const Scales& all) {
        a[0] = a[2] = all.m[0];
        a[1] = a[3] = all.m[1];
    }

    // In the int8 profile: weights are codes times a group's scale, an integer times the row's `unit`, plus a factor of the
    // row times the group's minimum.
    static constexpr int GROUPS = 2, ZERO = 0;
    static constexpr bool INTEGER = true, OFFSET = true, BY_ROWS = true;

    __device__ static void whole_scales(int (&s)[2][GROUPS], float (&unit)[2], const QtRaw& r, int lane) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            uint32_t sc[2], unused[2];
            integers(sc, unused, r, lane, row);
            unit[row] = __low2float(as_half2(r.more[row].x));
#pragma unroll
            for (int j = 0; j < 2; ++j) s[row][j] = static_cast<int>(sc[j]);
        }
    }

    // Two integers below 1024 as halves.
    __device__ static uint32_t halves_of(uint32_t low, uint32_t high) {
        return as_u32(__hsub2(as_half2(low | high << 16 | 0x64006400), __floats2half2_rn(1024.0f, 1024.0f)));
    }

    // The A fragment of the minima's step: k 0…7 are the groups, k 8…15 the same again.
    __device__ static void minima(uint32_t (&a)[4], float (&factor)[2], const QtRaw& r, int lane) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            uint32_t unused[2], mn[2];
            integers(unused, mn, r, lane, row);
            factor[row] = -__high2float(as_half2(r.more[row].x));
            a[row] = a[2 + row] = halves_of(mn[0], mn[1]);
        }
    }

    // The same of one row and four groups, the first ones or the last, from what scales a unit; m: two of each slab.
    template <class Read>
    __device__ static void of_row(int (&s)[4], float& unit, uint32_t (&m)[2], float& factor, const uint8_t* meta, int row,
                                  bool last) {
        const uint4 v = Read::b16(meta + row * 16);
        const uint32_t sc = last ? (v.w & 0x0f0f0f0f) | (v.y >> 2 & 0x30303030) : v.y & 0x3f3f3f3f;
        const uint32_t mn = last ? (v.w >> 4 & 0x0f0f0f0f) | (v.z >> 2 & 0x30303030) : v.z & 0x3f3f3f3f;
        const half2 d = as_half2(v.x);
        unit = __low2float(d);
        factor = -__high2float(d);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            s[j] = static_cast<int>(sc >> (8 * j) & 255);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) m[j] = halves_of(mn >> (16 * j) & 255, mn >> (16 * j + 8) & 255);
    }
};

// Nibble of value k of 256: 32 bytes per pair of groups.
__device__ __forceinline__ uint32_t nibble256(const uint8_t* qs, int k) {
    return qs[k / 64 * 32 + k % 32] >> (k % 64 / 32 * 4) & 15;
}

struct OfQ4_K {
    using Plane = NibblePlane;
    static constexpr int FILE_BYTES = 144;
    __device__ static uint32_t code(const uint8_t* b, int k) { return nibble256(b + 16, k); }
};
using Qt4K = QtK<OfQ4_K>;

struct OfQ5_K {
    using Plane = FiveBitPlane;
    static constexpr int FILE_BYTES = 176;
    __device__ static uint32_t code(const uint8_t* b, int k) {
        return nibble256(b + 48, k) | (b[16 + k % 32] >> k / 32 & 1) << 4;
    }
};
using Qt5K = QtK<OfQ5_K>;

// Q4_K in QT16: 4 slabs of 512 B, then 16 × {d, dmin, 12 B of scales and minima} as in the file.
#pragma once

struct Qt4K {
    static constexpr int BYTES = 2304, FILE_BYTES = 144, META = 2048;

    // Word w of a unit, from the blocks of its 16 rows (null beyond the matrix).
    __device__ static uint32_t pack(const uint8_t* const (&rows)[QT_ROWS], int w) {
        uint32_t v = 0;
        if (w < META / 4) {
            const int slab = w / 128, lane = w % 128 / 4, step = w % 4;
            for (int n = 0; n < 8; ++n) {
                const uint8_t* b = rows[qt_row(lane, n)];
                const int k = slab * 64 + step * 16 + qt_k(lane, n);
                const uint32_t q = b ? b[16 + k / 64 * 32 + k % 32] >> (k % 64 / 32 * 4) & 15 : 0;
                v |= q << (4 * n);
            }
            return v;
        }
        const int at = (w - META / 4) * 4;
        const uint8_t* b = rows[at / 16];
        for (int j = 0; b && j < 4; ++j) v |= static_cast<uint32_t>(b[at % 16 + j]) << (8 * j);
        return v;
    }

    template <class Read>
    __device__ static void load(QtRaw& r, const uint8_t* unit, int lane) {
#pragma unroll
        for (int s = 0; s < 4; ++s) r.q[s] = Read::b16(unit + s * 512 + lane * 16);
        // d, dmin and the packed scales of rows g and g + 8.
        r.more[0] = Read::b16(unit + META + lane / 4 * 16);
        r.more[1] = Read::b16(unit + META + (lane / 4 + 8) * 16);
    }

    // Weights are two terms: q · s rounded once, and a minimum per group, which one more step multiplies with the sums
    // of the input's groups. A code is read as the half q · 2^-24, hence s · 2^24; s is a multiple of 16 of a half, so
    // that codes in the upper nibble need no shift.
    static constexpr bool HAS_MIN = true;

    // Of groups 2t and 2t + 1: s (row g, low) and s / 16 (row g + 8, high), times 2^24; minima of rows g and g + 8,
    // negated.
    struct Scales {
        uint32_t s[2], m[2];
    };

    __device__ static void scales(Scales& out, const QtRaw& r, int lane, float scale) {
        const int t = lane % 4, shift = 16 * (t % 2);
        float s[2][2], m[2][2];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const half2 d = as_half2(r.more[row].x);
            const float unit = __low2float(d) * (scale * (QT_CODE / 16.0f)), unit_min = __high2float(d) * -scale;
            // Bytes 0…3, 4…7 and 8…11 of the packed scales; groups 2t and 2t + 1 are bytes 2t % 4 and the next.
            const uint32_t low = r.more[row].y, mid = r.more[row].z, high = r.more[row].w;
            const uint32_t sc = t < 2 ? low & 0x3f3f3f3f : (high & 0x0f0f0f0f) | (low >> 2 & 0x30303030);
            const uint32_t mn = t < 2 ? mid & 0x3f3f3f3f : (high >> 4 & 0x0f0f0f0f) | (mid >> 2 & 0x30303030);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                s[row][j] = unit * static_cast<float>(sc >> (shift + 8 * j) & 255);
                m[row][j] = unit_min * static_cast<float>(mn >> (shift + 8 * j) & 255);
            }
        }
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
        const half2 s0 = __low2half2(scales.s[step / 2]), s1 = __high2half2(scales.s[step / 2]);
        uint32_t w = word_of(r.q[slab], step);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            a[2 * h] = as_u32(__hmul2(as_half2(w & 0x000f000f), s0));
            a[2 * h + 1] = as_u32(__hmul2(as_half2(w & 0x00f000f0), s1));
            w >>= 8;
        }
    }

    // The step of the minima: k 0…7 are the groups, k 8…15 the same again, for the rest of their sums.
    __device__ static void min_fragment(uint32_t (&a)[4], const Scales& all) {
        a[0] = a[2] = all.m[0];
        a[1] = a[3] = all.m[1];
    }
};

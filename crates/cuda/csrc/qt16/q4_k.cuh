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

    struct Raw {
        uint4 q[4];
        uint4 meta[2];  // rows g and g + 8
    };

    __device__ static void load(Raw& r, const uint8_t* unit, int lane) {
#pragma unroll
        for (int s = 0; s < 4; ++s) r.q[s] = load_weights(unit + s * 512 + lane * 16);
        r.meta[0] = load_weights(unit + META + lane / 4 * 16);
        r.meta[1] = load_weights(unit + META + (lane / 4 + 8) * 16);
    }

    // Scales and negated minima of groups 2t and 2t + 1: rows g (low) and g + 8 (high).
    struct Scales {
        uint32_t s[2], m[2];
    };

    __device__ static void scales(Scales& out, const Raw& r, int lane, float scale) {
        const int t = lane % 4;
        float s[2][2], m[2][2];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const half2 d = as_half2(r.meta[row].x);
            const float unit = __low2float(d) * scale, unit_min = __high2float(d) * scale;
            // Bytes 0…3, 4…7 and 8…11 of the packed scales; groups 2t and 2t + 1 are bytes 2t % 4 and the next.
            const uint32_t low = r.meta[row].y, mid = r.meta[row].z, high = r.meta[row].w;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int shift = (2 * t % 4 + j) * 8;
                const uint32_t a = low >> shift & 255, b = mid >> shift & 255, c = high >> shift & 255;
                const uint32_t sc = t < 2 ? a & 63 : (c & 15) | a >> 6 << 4;
                const uint32_t mn = t < 2 ? b & 63 : c >> 4 | b >> 6 << 4;
                s[row][j] = unit * static_cast<float>(sc);
                m[row][j] = -(unit_min * static_cast<float>(mn));
            }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            out.s[j] = as_u32(__floats2half2_rn(s[0][j], s[1][j]));
            out.m[j] = as_u32(__floats2half2_rn(m[0][j], m[1][j]));
        }
    }

    // What a k64 slab needs of the scales: those of its two groups, from the lane of the quad that has them.
    struct Slab {
        half2 s[2][2], m[2][2];  // [group][row]
    };

    __device__ static void slab(Slab& out, const Scales& all, int slab, int lane) {
        const int from = (lane & ~3) | slab;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const half2 s = as_half2(__shfl_sync(~0u, all.s[j], from)), m = as_half2(__shfl_sync(~0u, all.m[j], from));
            out.s[j][0] = __low2half2(s);
            out.s[j][1] = __high2half2(s);
            out.m[j][0] = __low2half2(m);
            out.m[j][1] = __high2half2(m);
        }
    }

    // Step `step` of slab `slab`: exact codes, then one multiply-add in half precision, as the f16 profile says.
    __device__ static void fragment(uint32_t (&a)[4], const Raw& r, const Slab& scales, int slab, int step) {
        const half2 shift1 = __float2half2_rn(-1024.0f), scale16 = __float2half2_rn(0.0625f);
        const half2 shift16 = __float2half2_rn(-64.0f);
        const int group = step / 2;
        uint32_t w = word_of(r.q[slab], step);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const half2 q0 = __hadd2(as_half2((w & 0x000f000f) | 0x64006400), shift1);
            const half2 q1 = __hfma2(as_half2((w & 0x00f000f0) | 0x64006400), scale16, shift16);
            a[2 * h] = as_u32(__hfma2(q0, scales.s[group][0], scales.m[group][0]));
            a[2 * h + 1] = as_u32(__hfma2(q1, scales.s[group][1], scales.m[group][1]));
            w >>= 8;
        }
    }
};

//! Row-wise work: norms, activation quantization, activation functions.
//!
//! Rows are padded with zeros to a multiple of sixteen by their owners, so no kernel has a tail.

use crate::simd::{LANES, Simd};

/// What a norm computes before its scale; `eps` included.
#[derive(Clone, Copy)]
pub(crate) enum NormOp {
    Rms(f32),
    Layer(f32),
}

/// `out = norm(x) · weight [+ bias]` over `len` values; `x`, `weight`, `bias`, `out` are readable (writable) up to the next multiple of
/// sixteen, with zeros there in `x` and `weight`.
pub(crate) struct NormJob {
    pub(crate) op: NormOp,
    pub(crate) x: *const f32,
    pub(crate) weight: *const f32,
    /// Null for none.
    pub(crate) bias: *const f32,
    pub(crate) out: *mut f32,
    pub(crate) len: usize,
}

/// # Safety
/// The job's pointers are valid as it says; the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn norm<S: Simd>(job: &NormJob) {
    // SAFETY: passed on.
    unsafe {
        let (mean, eps) = match job.op {
            NormOp::Rms(eps) => (0.0, eps),
            NormOp::Layer(eps) => {
                let mut sum = S::splat(0.0);
                for i in (0..job.len).step_by(LANES) {
                    sum = S::add(sum, S::load(job.x.add(i)));
                }
                (S::sum(sum) / job.len as f32, eps)
            }
        };
        let mut squares = S::splat(0.0);
        let whole = job.len / LANES * LANES;
        for i in (0..whole).step_by(LANES) {
            let centred = S::sub(S::load(job.x.add(i)), S::splat(mean));
            squares = S::fma(centred, centred, squares);
        }
        if whole < job.len {
            // The padding is not part of the row: its lanes add nothing.
            let mut last = [0f32; LANES];
            for (i, value) in last[..job.len - whole].iter_mut().enumerate() {
                *value = *job.x.add(whole + i) - mean;
            }
            let last = S::load(last.as_ptr());
            squares = S::fma(last, last, squares);
        }
        let factor = S::splat(1.0 / (S::sum(squares) / job.len as f32 + eps).sqrt());
        for i in (0..job.len).step_by(LANES) {
            let centred = S::sub(S::load(job.x.add(i)), S::splat(mean));
            let scaled = S::mul(S::mul(centred, factor), S::load(job.weight.add(i)));
            let shifted = if job.bias.is_null() { scaled } else { S::add(scaled, S::load(job.bias.add(i))) };
            S::store(job.out.add(i), shifted);
        }
    }
}

/// Words of [`QuantizeJob::sum`] per 256 values.
pub(crate) const SUM_WORDS: usize = 8;

/// Where the quantized form of one row goes; see [`crate::kernel::matmul::Acts`].
pub(crate) struct QuantizeJob {
    pub(crate) x: *const f32,
    pub(crate) k: usize,
    pub(crate) q: *mut i8,
    /// Distance from one run of 64 quantized values to the next of the same 256, and from 256 to the next.
    pub(crate) step: usize,
    pub(crate) group: usize,
    /// From a value's high byte to its low one, where values have both.
    pub(crate) plane: usize,
    /// Distance from one scale to the next, and of sums per 32 likewise; of sums per 256, in such groups.
    pub(crate) scale_step: usize,
    pub(crate) d: *mut f32,
    pub(crate) ds: *mut f32,
    /// Per 32 values: their sum, or the sums of two times 16 as `i16`, the earlier below.
    pub(crate) sum: *mut i32,
    /// Per 64 values, where scales are per 256: the sums of two times 32 as `i16`, [`SUM_WORDS`]` / 2` per 256.
    pub(crate) sum64: *mut i32,
}

/// Scale and its inverse for values of at most `amax`. Below 1e-35 the inverse would overflow: such a block is zero.
/// A NaN or infinity makes the scale NaN or infinite, which reaches the logits and is refused there.
#[inline(always)]
fn scale(amax: f32) -> (f32, f32) {
    if amax < 1e-35 { (0.0, 0.0) } else { (amax / 127.0, 127.0 / amax) }
}

/// Per 32 values: `d = amax/127`, `q = round(x·127/amax)` with ties to even, the sum of q, and d times that sum.
///
/// # Safety
/// `x` is valid for `k` values (a multiple of 32), the outputs for theirs; the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn quantize32<S: Simd>(job: &QuantizeJob) {
    // SAFETY: passed on.
    unsafe {
        for b in 0..job.k / 32 {
            let (x, q) =
                (job.x.add(32 * b), job.q.add(b / 8 * job.group + b % 8 / 2 * job.step + b % 2 * 32));
            let (low, high) = (S::load(x), S::load(x.add(LANES)));
            let (d, inverse) = scale(S::largest(S::max_abs(low, high)));
            S::store_i8(q, S::mul(low, S::splat(inverse)));
            S::store_i8(q.add(LANES), S::mul(high, S::splat(inverse)));
            let sum = (0..32).map(|i| i32::from(*q.add(i))).sum::<i32>();
            *job.d.add(b * job.scale_step) = d;
            *job.sum.add(b * job.scale_step) = sum;
            *job.ds.add(b * job.scale_step) = d * sum as f32;
        }
    }
}

/// Per 256 values the same, with pairs of sums and without `ds`.
///
/// # Safety
/// `x` is valid for `k` values (a multiple of 256), the outputs for theirs; the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn quantize256<S: Simd>(job: &QuantizeJob) {
    // SAFETY: passed on.
    unsafe {
        for g in 0..job.k / 256 {
            let x = job.x.add(256 * g);
            let q = |i: usize| job.q.add(g * job.group + i / 64 * job.step + i % 64);
            let mut amax = S::splat(0.0);
            for i in (0..256).step_by(LANES) {
                amax = S::max_abs(amax, S::load(x.add(i)));
            }
            let (d, inverse) = scale(S::largest(amax));
            for i in (0..256).step_by(LANES) {
                S::store_i8(q(i), S::mul(S::load(x.add(i)), S::splat(inverse)));
            }
            let sum = |from: usize, len: usize| (0..len).map(|i| i32::from(*q(from).add(i))).sum::<i32>();
            let pair = |low: i32, high: i32| (low & 0xffff) | (high << 16);
            let words = job.sum.add(SUM_WORDS * g * job.scale_step);
            let words64 = job.sum64.add(SUM_WORDS / 2 * g * job.scale_step);
            for i in 0..8 {
                *words.add(i) = pair(sum(32 * i, 16), sum(32 * i + 16, 16));
            }
            for i in 0..4 {
                *words64.add(i) = pair(sum(64 * i, 32), sum(64 * i + 32, 32));
            }
            *job.d.add(g * job.scale_step) = d;
        }
    }
}

/// Per 256 values: `x ≈ (256·high + low)·d/256`, whole numbers of at most 30,000 as two planes of signed bytes. What is missing of
/// the last 256 is zero.
///
/// # Safety
/// `x` is valid for `k` values (a multiple of 32), `d` for its, `q` for two planes; the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn quantize_wide<S: Simd>(job: &QuantizeJob) {
    const MOST: f32 = 30_000.0;
    // SAFETY: passed on.
    unsafe {
        for g in 0..job.k.div_ceil(256) {
            let len = (job.k - 256 * g).min(256);
            let x = job.x.add(256 * g);
            let mut amax = S::splat(0.0);
            for i in (0..len).step_by(LANES) {
                amax = S::max_abs(amax, S::load(x.add(i)));
            }
            let amax = S::largest(amax);
            // Below, the inverse would overflow: such values are zero. NaN goes on, as in `scale`.
            let (d, inverse) = if amax < 1e-33 { (0.0, 0.0) } else { (amax * (256.0 / MOST), MOST / amax) };
            for i in (0..256).step_by(LANES) {
                let high = job.q.add(g * job.group + i / 64 * job.step + i % 64);
                let x = if i < len { S::load(x.add(i)) } else { S::splat(0.0) };
                let whole = S::round(S::mul(x, S::splat(inverse)));
                // A quarter more, so that a half goes up and the rest is at most 127.
                let upper = S::round(S::mul(S::add(whole, S::splat(0.25)), S::splat(1.0 / 256.0)));
                S::store_i8(high, upper);
                S::store_i8(high.add(job.plane), S::fnma(upper, S::splat(256.0), whole));
            }
            *job.d.add(g * job.scale_step) = d;
        }
    }
}

/// `out[k][r] = rows[r][k]` for sixteen rows of `len` floats, `stride` apart: a panel of floats.
///
/// # Safety
/// `rows` is valid for that, `out` for `16 · len` floats; the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn interleave<S: Simd>(rows: *const f32, stride: usize, len: usize, out: *mut f32) {
    // SAFETY: passed on.
    unsafe {
        let mut k = 0;
        while k + LANES <= len {
            // Values of a fixed size, which the compiler turns with shuffles.
            let tile: [[f32; LANES]; LANES] =
                std::array::from_fn(|r| rows.add(r * stride + k).cast::<[f32; LANES]>().read_unaligned());
            for i in 0..LANES {
                let column: [f32; LANES] = std::array::from_fn(|r| tile[r][i]);
                out.add((k + i) * LANES).cast::<[f32; LANES]>().write_unaligned(column);
            }
            k += LANES;
        }
        for k in k..len {
            for r in 0..LANES {
                *out.add(k * LANES + r) = *rows.add(r * stride + k);
            }
        }
    }
}

/// Activation functions.
#[derive(Clone, Copy)]
pub(crate) enum Act {
    Silu,
    Gelu,
    GeluTanh,
}

/// `tanh(x) = 1 − 2/(e^{2x} + 1)`.
///
/// # Safety
/// The CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn tanh<S: Simd>(x: S::F) -> S::F {
    // SAFETY: passed on.
    unsafe {
        let e = S::exp(S::add(x, x));
        S::sub(S::splat(1.0), S::div(S::splat(2.0), S::add(e, S::splat(1.0))))
    }
}

/// # Safety
/// The CPU has the features of `S`.
#[inline(always)]
unsafe fn activate<S: Simd>(act: Act, x: S::F) -> S::F {
    // SAFETY: passed on.
    unsafe {
        match act {
            Act::Silu => S::div(x, S::add(S::splat(1.0), S::exp(S::sub(S::splat(0.0), x)))),
            Act::Gelu => {
                // x·Φ(x) = max(x, 0) − |x|·erfc(|x|/√2)/2, and erfc(z) = (a1·t + … + a5·t⁵)·e^{−z²} with t = 1/(1 + p·z), within
                // 1.5e-7 (Abramowitz and Stegun, 7.1.26); p/√2 is the factor, and the coefficients are halves.
                let size = S::max_abs(x, x);
                let t = S::div(S::splat(1.0), S::fma(size, S::splat(0.231_641_89), S::splat(1.0)));
                let mut p = S::splat(0.530_702_7);
                for a in [-0.726_576_03, 0.710_706_9, -0.142_248_37, 0.127_414_8] {
                    p = S::fma(p, t, S::splat(a));
                }
                let power = S::mul(S::mul(x, x), S::splat(-0.5));
                let half_erfc = S::mul(S::mul(p, t), S::exp(power));
                S::sub(S::max(x, S::splat(0.0)), S::mul(size, half_erfc))
            }
            Act::GeluTanh => {
                // (1 + tanh u)/2 = 1/(1 + e^{−2u}), which does not cancel for negative u; −2√(2/π) is the factor.
                let cubic = S::mul(S::mul(x, x), S::mul(x, S::splat(0.044_715)));
                let power = S::mul(S::splat(-1.595_769_2), S::add(x, cubic));
                S::div(x, S::add(S::splat(1.0), S::exp(power)))
            }
        }
    }
}

/// `gate ← act(gate) · up` over `len` values rounded up to sixteen; `up` null leaves `act(gate)`.
///
/// # Safety
/// The pointers are valid for that; the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn gated<S: Simd>(act: Act, gate: *mut f32, up: *const f32, len: usize) {
    // SAFETY: passed on.
    unsafe {
        for i in (0..len).step_by(LANES) {
            let a = activate::<S>(act, S::load(gate.add(i)));
            S::store(gate.add(i), if up.is_null() { a } else { S::mul(a, S::load(up.add(i))) });
        }
    }
}

/// `x ← cap · tanh(x / cap)` over `len` values rounded up to sixteen.
///
/// # Safety
/// `x` is valid for that; the CPU has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn soft_cap<S: Simd>(cap: f32, x: *mut f32, len: usize) {
    // SAFETY: passed on.
    unsafe {
        for i in (0..len).step_by(LANES) {
            let t = tanh::<S>(S::div(S::load(x.add(i)), S::splat(cap)));
            S::store(x.add(i), S::mul(S::splat(cap), t));
        }
    }
}

#[cfg(test)]
mod tests;

//! Row-wise kernels against double precision, and every level against the portable one, bit by bit.

use super::*;
use crate::arch::scalar::Scalar;
use crate::kernel::cache::KvWrite;
use crate::testing::{Rng, first_difference, levels, relative_error};
use half::f16;

/// Runs `f` on every level and returns the values that all of them gave.
fn on_every_level(what: &str, f: impl Fn(&crate::arch::Kernels) -> Vec<f32>) -> Vec<f32> {
    let mut all = levels().map(|kernels| (kernels.isa, f(kernels)));
    let (_, first) = all.next().expect("a level");
    for (isa, other) in all {
        let at = first_difference(&first, &other);
        assert_eq!(at.map(|i| (i, first[i], other[i])), None, "{what}, {isa}");
    }
    first
}

fn padded(values: &[f32]) -> Vec<f32> {
    let mut padded = values.to_vec();
    padded.resize(values.len().next_multiple_of(LANES), 0.0);
    padded
}

#[test]
fn norms() {
    let mut rng = Rng(1);
    for len in [1, 15, 16, 17, 33, 40, 64, 100, 576, 1000] {
        for (mean, bound) in [(0.0, 1e-6), (100.0, 2e-5)] {
            let x: Vec<f32> = rng.normals(len, 1.0).iter().map(|v| v + mean).collect();
            let (weight, bias) = (rng.normals(len, 1.0), rng.normals(len, 1.0));
            for op in [NormOp::Rms(1e-6), NormOp::Layer(1e-5)] {
                for bias in [None, Some(&bias)] {
                    let found = on_every_level("norm", |kernels| {
                        let (x, weight, bias) = (padded(&x), padded(&weight), bias.map(|b| padded(b)));
                        let mut out = vec![f32::NAN; x.len()];
                        let bias = bias.as_ref().map_or(std::ptr::null(), |b| b.as_ptr());
                        let (x, weight, to) = (x.as_ptr(), weight.as_ptr(), out.as_mut_ptr());
                        // SAFETY: all rows are padded; the level is available.
                        unsafe { (kernels.norm)(&NormJob { op, x, weight, bias, out: to, len }) };
                        out
                    });
                    let (found, beyond) = found.split_at(len);
                    assert!(beyond.iter().all(|v| *v == 0.0), "padding must stay zero");
                    let expected = norm_reference(op, &x, &weight, bias.map(Vec::as_slice));
                    let error = relative_error(found, &expected);
                    let layer = matches!(op, NormOp::Layer(_));
                    assert!(error <= bound, "layer {layer}, {len} values around {mean}: {error:.1e}");
                }
            }
        }
    }
}

fn norm_reference(op: NormOp, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f64> {
    let n = x.len() as f64;
    let (mean, eps) = match op {
        NormOp::Rms(eps) => (0.0, eps),
        NormOp::Layer(eps) => (x.iter().map(|v| f64::from(*v)).sum::<f64>() / n, eps),
    };
    let variance = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
    let root = (variance + f64::from(eps)).sqrt();
    let scaled = |i: usize| (f64::from(x[i]) - mean) / root * f64::from(weight[i]);
    (0..x.len()).map(|i| scaled(i) + bias.map_or(0.0, |b| f64::from(b[i]))).collect()
}

#[test]
fn a_norm_may_be_in_place() {
    let x = Rng(2).normals(48, 2.0);
    let weight = Rng(3).normals(48, 1.0);
    let run = |kernels: &crate::arch::Kernels, x: *const f32, out: *mut f32| {
        let job = NormJob {
            op: NormOp::Layer(0.0),
            x,
            weight: weight.as_ptr(),
            bias: std::ptr::null(),
            out,
            len: 48,
        };
        // SAFETY: rows of 48 values; the level is available.
        unsafe { (kernels.norm)(&job) };
    };
    for kernels in levels() {
        let (mut apart, mut same) = (vec![0.0; 48], x.clone());
        run(kernels, x.as_ptr(), apart.as_mut_ptr());
        let row = same.as_mut_ptr();
        run(kernels, row, row);
        assert_eq!(first_difference(&apart, &same), None, "{}", kernels.isa);
    }
}

/// What a quantizer writes.
#[derive(Debug, PartialEq)]
struct Quantized {
    q: Vec<i8>,
    d: Vec<f32>,
    ds: Vec<f32>,
    sum: Vec<i32>,
    sum64: Vec<i32>,
}

fn quantized(kernels: &crate::arch::Kernels, block: usize, x: &[f32]) -> Quantized {
    let k = x.len();
    let (d, sum64) = (vec![7.0; k / block], if block == 32 { vec![] } else { vec![99; k / 64] });
    let mut out = Quantized { q: vec![99; k], d, ds: vec![7.0; k / 32], sum: vec![99; k / 32], sum64 };
    let job = QuantizeJob {
        x: x.as_ptr(),
        k,
        q: out.q.as_mut_ptr(),
        step: 64,
        group: 256,
        plane: 0,
        scale_step: 1,
        d: out.d.as_mut_ptr(),
        ds: out.ds.as_mut_ptr(),
        sum: out.sum.as_mut_ptr(),
        sum64: out.sum64.as_mut_ptr(),
    };
    // SAFETY: the outputs are as long as the job says; the level is available.
    unsafe { if block == 32 { (kernels.quantize32)(&job) } else { (kernels.quantize256)(&job) } };
    out
}

/// Written naively from the contract.
fn quantized_reference(block: usize, x: &[f32]) -> Quantized {
    let mut out = Quantized { q: vec![], d: vec![], ds: vec![7.0; x.len() / 32], sum: vec![], sum64: vec![] };
    for (b, values) in x.chunks_exact(block).enumerate() {
        let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        let zero = largest < 1e-35;
        let d = if zero { 0.0 } else { largest / 127.0 };
        let code = |v: &f32| if zero { 0 } else { (v * (127.0 / largest)).round_ties_even() as i8 };
        let q: Vec<i8> = values.iter().map(code).collect();
        let sum_of = |q: &[i8]| q.iter().map(|q| i32::from(*q)).sum::<i32>();
        if block == 32 {
            out.ds[b] = d * sum_of(&q) as f32;
            out.sum.push(sum_of(&q));
        } else {
            let pair = |q: &[i8]| {
                let (low, high) = q.split_at(q.len() / 2);
                sum_of(high) * 65536 + i32::from(sum_of(low) as u16)
            };
            out.sum.extend(q.chunks_exact(32).map(pair));
            out.sum64.extend(q.chunks_exact(64).map(pair));
        }
        out.d.push(d);
        out.q.extend(q);
    }
    out
}

#[test]
fn quantization_is_the_contracts() {
    let mut rng = Rng(4);
    let mut inputs = vec![
        vec![0.0; 512],
        vec![-0.0; 512],
        // Ties: the largest value makes the factor 1.
        (0..512).map(|i| if i % 32 == 5 { -127.0 } else { (i % 250) as f32 / 2.0 - 62.5 }).collect(),
        (0..512).map(|i| if i % 2 == 0 { f32::MAX } else { f32::MIN }).collect(),
        (0..512).map(|i| f32::from_bits(i as u32)).collect(),
        (0..512).map(|i| 1e-36 * i as f32).collect(),
        (0..512).map(|i| if i / 32 % 2 == 0 { 0.0 } else { 1.0 }).collect(),
    ];
    for exponent in [-34, -20, -3, 0, 3, 20, 37] {
        inputs.push(rng.normals(512, 10f32.powi(exponent)));
    }
    for x in &inputs {
        for block in [32, 256] {
            let expected = quantized_reference(block, x);
            for kernels in levels() {
                assert_eq!(quantized(kernels, block, x), expected, "per {block}, {}", kernels.isa);
            }
        }
    }
}

#[test]
fn quantization_keeps_what_is_not_finite_in_the_scale() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 17, 255] {
            let mut x = Rng(5).normals(512, 1.0);
            x[at] = bad;
            for kernels in levels() {
                for block in [32, 256] {
                    let d = quantized(kernels, block, &x).d;
                    for (b, d) in d.iter().enumerate() {
                        assert_eq!(
                            d.is_finite(),
                            b != at / block,
                            "{bad} at {at}, per {block}, {}",
                            kernels.isa
                        );
                    }
                }
            }
        }
    }
}

/// Distance in units of the last place of the expected value.
fn ulps(found: f32, expected: f64) -> f64 {
    let exponent = expected.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
    (f64::from(found) - expected).abs() / (exponent - 23.0).exp2()
}

fn largest(errors: impl Iterator<Item = f64>) -> f64 {
    errors.fold(0.0, f64::max)
}

/// `n` values from `low` to `high`, a multiple of sixteen.
fn grid(low: f64, high: f64, n: usize) -> Vec<f32> {
    (0..n).map(|i| (low + (high - low) * i as f64 / (n - 1) as f64) as f32).collect()
}

fn exp(x: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    for (out, x) in out.chunks_exact_mut(LANES).zip(x.chunks_exact(LANES)) {
        // SAFETY: sixteen values; the portable level needs nothing.
        unsafe { Scalar::store(out.as_mut_ptr(), Scalar::exp(Scalar::load(x.as_ptr()))) };
    }
    out
}

#[test]
fn exponentials() {
    // 0.88 ulp found.
    let x = grid(-87.29, 88.0, 1 << 20);
    let error = largest(exp(&x).iter().zip(&x).map(|(e, x)| ulps(*e, f64::from(*x).exp())));
    assert!(error < 1.0, "{error} ulp");
    let special = [0.0, -0.0, -87.31, -1000.0, f32::NEG_INFINITY, 1000.0, f32::INFINITY, f32::NAN];
    let e = exp(&[special, [0.0; 8]].concat());
    assert_eq!(e[..5], [1.0, 1.0, 0.0, 0.0, 0.0]);
    assert!(e[5] > 1.6e38 && e[6] > 1.6e38 && e[7].is_nan(), "{e:?}");
}

fn gated(act: Act, x: &[f32], up: Option<&[f32]>) -> Vec<f32> {
    on_every_level("activation", |kernels| {
        let mut out = x.to_vec();
        let up = up.map_or(std::ptr::null(), |up| up.as_ptr());
        // SAFETY: whole vectors; the level is available.
        unsafe { (kernels.gated)(act, out.as_mut_ptr(), up, x.len()) };
        out
    })
}

#[test]
fn silu() {
    let x = grid(-80.0, 80.0, 1 << 18);
    let expected = |x: f32| f64::from(x) / (1.0 + (-f64::from(x)).exp());
    let error = largest(gated(Act::Silu, &x, None).iter().zip(&x).map(|(y, x)| ulps(*y, expected(*x))));
    assert!(error < 4.0, "{error} ulp"); // 2.2 found
    let far = gated(Act::Silu, &[-1e4, 1e4, f32::NAN, 0.0].repeat(4), None);
    assert!(far[0].abs() < 1e-30 && far[1] == 1e4 && far[2].is_nan() && far[3] == 0.0, "{far:?}");
    let up = Rng(6).normals(x.len(), 1.0);
    let product = gated(Act::Silu, &x, Some(&up));
    let alone = gated(Act::Silu, &x, None);
    assert!(product.iter().zip(&alone).zip(&up).all(|((p, a), u)| p.to_bits() == (a * u).to_bits()));
}

#[test]
fn gelu_by_erf() {
    // erf by its series around 0, and by Laplace's continued fraction far from it.
    let erfc = |z: f64| {
        if z < 3.0 {
            let terms = (0..80).scan(z, |term, n| {
                let value = *term / f64::from(2 * n + 1);
                *term *= -z * z / f64::from(n + 1);
                Some(value)
            });
            1.0 - 2.0 / std::f64::consts::PI.sqrt() * terms.sum::<f64>()
        } else {
            let fraction = (1..60).rev().fold(z, |below, k| z + f64::from(k) / 2.0 / below);
            (-z * z).exp() / std::f64::consts::PI.sqrt() / fraction
        }
    };
    // Φ(1.96) and Φ(4) of a table of the normal distribution.
    for (z, upper) in [(1.96, 0.024_997_895_148), (4.0, 3.167_124_183e-5)] {
        let found = erfc(z / 2f64.sqrt()) / 2.0;
        assert!((found - upper).abs() < 1e-9 * upper.max(1e-3), "{found} of {upper}");
    }
    let expected = |x: f32| {
        let x = f64::from(x);
        x.max(0.0) - x.abs() * erfc(x.abs() / 2f64.sqrt()) / 2.0
    };
    let x = grid(-12.0, 12.0, 1 << 16);
    let y = gated(Act::Gelu, &x, None);
    let off = largest(
        y.iter().zip(&x).map(|(y, x)| (f64::from(*y) - expected(*x)).abs() / f64::from(x.abs()).max(1.0)),
    );
    assert!(off < 2e-7, "{off}");
    let far = gated(Act::Gelu, &[-1e4, 1e4, f32::NAN, 0.0].repeat(4), None);
    assert!(far[0].abs() < 1e-30 && far[1] == 1e4 && far[2].is_nan() && far[3] == 0.0, "{far:?}");
}

#[test]
fn gelu() {
    let x = grid(-12.0, 12.0, 1 << 18);
    let expected = |x: f32| {
        let x = f64::from(x);
        x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
    };
    let y = gated(Act::GeluTanh, &x, None);
    // In the tail below −3 the rounding of the exponent shows; there values are below 0.004. 2, 20 and 83 ulp found.
    let error = |from: f32, to: f32| {
        let inside = y.iter().zip(&x).filter(|(_, x)| (from..to).contains(*x));
        largest(inside.map(|(y, x)| ulps(*y, expected(*x))))
    };
    for (from, to, bound) in [(0.0, 12.0, 4.0), (-3.0, 0.0, 24.0), (-6.0, -3.0, 100.0)] {
        assert!(error(from, to) < bound, "{} ulp in {from}…{to}", error(from, to));
    }
    let off = largest(
        y.iter().zip(&x).map(|(y, x)| (f64::from(*y) - expected(*x)).abs() / f64::from(x.abs()).max(1.0)),
    );
    assert!(off < 2e-7, "{off}");
    let far = gated(Act::GeluTanh, &[-1e4, 1e4, f32::NAN, 0.0].repeat(4), None);
    assert!(far[0].abs() < 1e-30 && far[1] == 1e4 && far[2].is_nan() && far[3] == 0.0, "{far:?}");
}

#[test]
fn soft_caps() {
    for cap in [1.0f32, 30.0, 50.0] {
        let x = grid(-500.0, 500.0, 1 << 16);
        let y = on_every_level("soft cap", |kernels| {
            let mut out = x.clone();
            // SAFETY: whole vectors; the level is available.
            unsafe { (kernels.soft_cap)(cap, out.as_mut_ptr(), out.len()) };
            out
        });
        let c = f64::from(cap);
        let off = largest(
            y.iter().zip(&x).map(|(y, x)| (f64::from(*y) - c * (f64::from(*x) / c).tanh()).abs() / c),
        );
        assert!(off < 2.5e-7, "cap {cap}: {off}");
        assert!(y.iter().all(|y| y.abs() <= cap));
    }
}

/// The half nearest to `x`, ties to even, by its definition: eleven bits, exponents from −14 on. Every step is exact.
/// (`f16::from_f64` will not do: where the processor has no such instruction, it drops bits before it rounds.)
fn nearest_half(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(-14);
    let last_place = 2f64.powi(exponent - 10);
    let rounded = (x / last_place).round_ties_even() * last_place;
    if rounded.abs() > f64::from(f16::MAX) { f64::INFINITY.copysign(x) } else { rounded }
}

#[test]
fn halves() {
    let mut rng = Rng(7);
    // Every half, the midpoints to the next one, their neighbours, and any bits at all.
    let mut x: Vec<f32> = (0..=u16::MAX).map(|b| f16::from_bits(b).to_f32()).collect();
    x.extend((0..0x7bff).map(|b| (f16::from_bits(b).to_f32() + f16::from_bits(b + 1).to_f32()) / 2.0));
    x.extend(
        (0..0x7bff)
            .map(|b| (f16::from_bits(b).to_f32() + f16::from_bits(b + 1).to_f32()) / 2.0)
            .map(f32::next_up),
    );
    x.extend((0..1 << 18).map(|_| f32::from_bits(rng.next() as u32)));
    x.resize(x.len().next_multiple_of(LANES), 65519.996);
    for kernels in levels() {
        let mut out = vec![0x5555; x.len()];
        let mut keys = vec![0u16; LANES * minfer_ops::KV_BLOCK];
        for (x, out) in x.chunks_exact(LANES).zip(out.chunks_exact_mut(LANES)) {
            let job = |block| KvWrite { x: x.as_ptr(), block, slot: 0, dim: LANES };
            let kv = kernels.kv(minfer_ops::KvType::F16);
            // SAFETY: one token of one head of sixteen channels; the level is available.
            unsafe {
                (kv.write_key)(&job(keys.as_mut_ptr().cast()));
                (kv.write_value)(&job(out.as_mut_ptr().cast()));
            }
            assert!(keys.iter().step_by(minfer_ops::KV_BLOCK).eq(out.iter()), "keys and values differ");
        }
        for (x, bits) in x.iter().zip(out) {
            let (found, expected) = (f16::from_bits(bits), nearest_half(f64::from(*x)));
            let same =
                if x.is_nan() { found.is_nan() } else { found.to_f64().to_bits() == expected.to_bits() };
            assert!(same, "{}: {x} became {found}, not {expected}", kernels.isa);
        }
    }
}

/// Within half a step of sixteen bits; the same bytes with all vectors.
#[test]
fn quantizes_to_two_planes() {
    let mut x = Rng(7).normals(256 + 96, 1.0);
    // A block of nothing, one that is small, one that is large.
    x[32..64].fill(0.0);
    x[64..96].iter_mut().for_each(|v| *v *= 1e-4);
    x[300..310].iter_mut().for_each(|v| *v *= 1e4);
    let k = x.len();
    let mut first: Option<(Vec<i8>, Vec<f32>)> = None;
    for level in crate::kernel::amx::soft::kernels() {
        let (mut q, mut d, mut none, mut sum) = (vec![99i8; 1024], vec![7f32; 2], [0f32; 0], [0i32; 0]);
        let job = QuantizeJob {
            x: x.as_ptr(),
            k,
            q: q.as_mut_ptr(),
            step: 64,
            group: 256,
            plane: 512,
            scale_step: 1,
            d: d.as_mut_ptr(),
            ds: none.as_mut_ptr(),
            sum: sum.as_mut_ptr(),
            sum64: sum.as_mut_ptr(),
        };
        // SAFETY: two planes of 512 bytes, two scales; sums are not written.
        unsafe { (level.quantize)(&job) };
        for i in 0..512 {
            let found =
                f64::from(i32::from(q[i]) * 256 + i32::from(q[512 + i])) * f64::from(d[i / 256] / 256.0);
            let expected = x.get(i).map_or(0.0, |x| f64::from(*x));
            let step = f64::from(d[i / 256] / 256.0);
            assert!((found - expected).abs() <= 0.51 * step, "{i}: {found} for {expected}, step {step}");
        }
        let first = first.get_or_insert_with(|| (q.clone(), d.clone()));
        assert_eq!((&first.0, &first.1), (&q, &d));
    }
    // The step is a 30,000th of what the largest can be.
    let largest = x[256..].iter().fold(0f32, |m, v| m.max(v.abs()));
    let d = first.expect("a level").1[1];
    assert!((d / 256.0 * 30_000.0 / largest - 1.0).abs() < 1e-5);
}

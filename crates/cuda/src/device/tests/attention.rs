//! Attention against double precision, for every type of cache, and the same bits in any company.

use super::*;
use minfer_ops::KvType;

/// Gate of attention: q and weights of keys in half precision, and d · code of q8_0. Keys and values are those in the cache,
/// with which fp8 is exact.
const ATTENTION_GATE: f64 = 1e-3;

/// Attention of random tokens with a device that has just computed q, k and v of them.
struct Scene {
    device: CudaDevice,
    embedding: Embedding,
    attn_in: AttnIn,
    spec: AttentionSpec,
    width: usize,
}

/// What a scene is about.
#[derive(Clone, Copy, Debug)]
struct Case {
    heads: Heads,
    window: Option<usize>,
    soft_cap: Option<f32>,
    types: KvTypes,
    /// Of keys, which queries are scaled to, and of values.
    sizes: [f32; 2],
}

/// Blocks of sequence `i`, in an order that is not ascending.
fn blocks_of(sequence: usize, count: usize, each: usize) -> Vec<u32> {
    (0..count).map(|b| (sequence * each + (each - 1 - b)) as u32).collect()
}

impl Scene {
    fn new(case: Case, tokens: usize) -> Option<Scene> {
        Scene::turned(case, tokens, None)
    }

    fn turned(case: Case, tokens: usize, rope: Option<Rope>) -> Option<Scene> {
        let Case { heads, window, soft_cap, types, sizes: [k_size, v_size] } = case;
        let mut device = device()?;
        let d_model = 64;
        let mut numbers = Numbers(3);
        let mut linear = |name: &str, rows: usize, size: f32| Linear {
            weight: float_weight(name, rows, d_model, &numbers.heavy(rows * d_model, 0.5 * size)),
            bias: None,
        };
        let kv = KvSlot { group: 0, layer: 0 };
        let attn_in = device
            .load_attn_in(AttnInSpec {
                norm: None,
                q: linear("q", heads.q * heads.dim, 1.0),
                k: linear("k", heads.kv * heads.dim, k_size),
                v: linear("v", heads.kv * heads.dim, v_size),
                q_norm: None,
                k_norm: None,
                rope,
                heads,
                kv,
            })
            .expect("a stage");
        let table = float_weight("table", tokens, d_model, &numbers.heavy(tokens * d_model, 1.0));
        let embedding = device.load_embedding(table.into()).expect("a table");
        let reserve = reserve(tokens, d_model, heads, 4 * tokens.div_ceil(KV_BLOCK));
        device.reserve(&Reserve { kv_types: types, ..reserve }).expect("memory");
        let scale = 1.0 / (heads.dim as f32).sqrt() / k_size;
        let spec = AttentionSpec { heads, scale, soft_cap, causal: true, window, kv };
        Some(Scene { device, embedding, attn_in, spec, width: heads.q * heads.dim })
    }

    /// Runs spans of (sequence, position, tokens); returns the results of all tokens.
    fn run(&mut self, spans: &[(usize, usize, &[u32])]) -> Vec<f32> {
        let each = self.device.state().expect("memory").reserve.kv_groups[0].blocks / 2;
        let tables: Vec<Vec<u32>> = spans
            .iter()
            .map(|(sequence, position, ids)| {
                blocks_of(*sequence, (position + ids.len()).div_ceil(KV_BLOCK), each)
            })
            .collect();
        let views: Vec<[BlockTable<'_>; 1]> =
            tables.iter().map(|blocks| [BlockTable { first: 0, blocks }]).collect();
        let mut start = 0;
        let mut own = Vec::new();
        let mut tokens = Vec::new();
        for ((_, position, ids), tables) in spans.iter().zip(&views) {
            own.push(Span { start, len: ids.len(), position: *position, tables });
            start += ids.len();
            tokens.extend_from_slice(ids);
        }
        let device = &mut self.device;
        device.begin(&Batch { tokens: &tokens, spans: &own, outputs: &[] }).expect("a step");
        device.embed(&self.embedding, 1.0).expect("a launch");
        device.attn_in(&self.attn_in).expect("a launch");
        device.flush().expect("launches");
        // Values of an earlier run do not pass for what was not written.
        let attn = &device.state().expect("memory").attn;
        device.gpu.upload(&vec![f32::NAN; attn.len()], attn).expect("a copy");
        device.attention(&self.spec).expect("a launch");
        device.flush().expect("launches");
        let mut out = vec![0.0; tokens.len() * self.width];
        device.gpu.download(&device.state().expect("memory").attn, &mut out).expect("a copy");
        out
    }

    /// `tokens` rows of a buffer.
    fn read(&self, buffer: &Buffer<f32>, tokens: usize, width: usize) -> Vec<f32> {
        let mut values = vec![0.0; tokens * width];
        self.device.gpu.download(buffer, &mut values).expect("a copy");
        values
    }

    /// Keys (part 0) or values (part 1) of sequence 0 as they are cached, `[tokens][kv_heads][dim]`: what each is, and the
    /// step between numbers of its type there.
    fn cached(&self, part: usize, tokens: usize) -> Vec<(f64, f64)> {
        let state = self.device.state().expect("memory");
        let (Heads { kv, dim, .. }, types) = (self.spec.heads, state.reserve.kv_types);
        let (store, ty) = (state.kv[0].parts()[part], [types.keys, types.values][part]);
        let mut bytes = vec![0u8; store.len()];
        self.device.gpu.download(store, &mut bytes).expect("a copy");
        let each = state.reserve.kv_groups[0].blocks / 2;
        let blocks = blocks_of(0, tokens.div_ceil(KV_BLOCK), each);
        let half = |at: usize| f64::from(half_at(&bytes, at));
        let mut values = Vec::new();
        for t in 0..tokens {
            for h in 0..kv {
                let block = (blocks[t / KV_BLOCK] as usize * kv + h) * ty.bytes(KV_BLOCK, dim);
                for c in 0..dim {
                    let value = t % KV_BLOCK * dim + c;
                    values.push(match ty {
                        KvType::F16 => {
                            let v = half(block + 2 * value);
                            (v, (v.abs() / 1024.0).max(f64::powi(2.0, -24)))
                        }
                        KvType::BF16 => {
                            let at = block + 2 * value;
                            let bits = u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]])) << 16;
                            let v = f64::from(f32::from_bits(bits));
                            (v, v.abs() / 128.0)
                        }
                        KvType::Q8_0 => {
                            let scales = block + KV_BLOCK * dim;
                            let d = half(scales + 2 * (c / 32 * KV_BLOCK + t % KV_BLOCK));
                            (d * f64::from(bytes[block + value] as i8), d)
                        }
                        KvType::FP8 => {
                            let d = half(block + KV_BLOCK * dim + 2 * (t % KV_BLOCK));
                            let (v, step) = e4m3(bytes[block + value]);
                            (d * v, d * step)
                        }
                        KvType::F32 => unreachable!("refused"),
                    });
                }
            }
        }
        values
    }

    /// The same of one sequence in double precision, from q that the last step left behind, and the cache.
    fn oracle(&self, tokens: usize) -> Vec<f64> {
        let state = self.device.state().expect("memory");
        let heads = self.spec.heads;
        let q = self.read(&state.q, tokens, self.width);
        let [k, v] = [0, 1].map(|part| self.cached(part, tokens));
        let kv_width = heads.kv * heads.dim;
        let mut out = vec![0.0; tokens * self.width];
        for (t, h) in (0..tokens).flat_map(|t| (0..heads.q).map(move |h| (t, h))) {
            let kv_head = h / (heads.q / heads.kv);
            let keys: Vec<usize> = (self.spec.seen_from(t)..=t).collect();
            let score = |key: &usize| -> f64 {
                let q = &q[t * self.width + h * heads.dim..][..heads.dim];
                let k = &k[key * kv_width + kv_head * heads.dim..][..heads.dim];
                let s = q.iter().zip(k).map(|(q, (k, _))| f64::from(*q) * k).sum::<f64>();
                let s = s * f64::from(self.spec.scale);
                self.spec.soft_cap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh())
            };
            let scores: Vec<f64> = keys.iter().map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for c in 0..heads.dim {
                let at = |key: &usize| v[key * kv_width + kv_head * heads.dim + c].0;
                let mixed: f64 = keys.iter().zip(&weights).map(|(key, w)| w * at(key)).sum();
                out[t * self.width + h * heads.dim + c] = mixed / sum;
            }
        }
        out
    }
}

/// What a code of E4M3 stands for, and the step to the next one.
fn e4m3(code: u8) -> (f64, f64) {
    let (e, m) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let step = 2f64.powi(e.max(1) - 7 - 3);
    let magnitude = if e == 0 { m * step } else { (8.0 + m) * step };
    (if code & 0x80 == 0 { magnitude } else { -magnitude }, step)
}

/// A number in half precision.
fn half_at(bytes: &[u8], at: usize) -> f32 {
    let mut value = [0.0];
    quant::dequantize(GgmlType::F16, &bytes[at..at + 2], &mut value).expect("two bytes");
    value[0]
}

/// Head counts and sizes, windows and caps; prompts cross a segment's border and end inside a block.
const SCENES: &[(Heads, Option<usize>, Option<f32>)] = &[
    (Heads { q: 8, kv: 2, dim: 64 }, None, None),
    (Heads { q: 7, kv: 1, dim: 128 }, None, None),
    (Heads { q: 12, kv: 2, dim: 128 }, Some(150), Some(20.0)),
    (Heads { q: 16, kv: 4, dim: 64 }, Some(70), None),
    (Heads { q: 4, kv: 4, dim: 96 }, Some(100), None),
    (Heads { q: 2, kv: 1, dim: 256 }, None, Some(30.0)),
    (Heads { q: 10, kv: 2, dim: 256 }, Some(150), None),
    (Heads { q: 6, kv: 2, dim: 80 }, Some(300), Some(5.0)),
    (Heads { q: 4, kv: 2, dim: 16 }, Some(1), None),
    (Heads { q: 40, kv: 1, dim: 192 }, None, None),
];

/// Types of keys and values.
fn all_types() -> Vec<KvTypes> {
    let types = [KvType::F16, KvType::BF16, KvType::Q8_0, KvType::FP8];
    types.into_iter().flat_map(|keys| types.map(|values| KvTypes { keys, values })).collect()
}

/// Every scene with every pair of types that its heads can have.
fn cases() -> impl Iterator<Item = Case> {
    SCENES.iter().flat_map(|&(heads, window, soft_cap)| {
        let possible = all_types().into_iter().filter(move |types| types.refused(heads.dim).is_none());
        possible.map(move |types| Case { heads, window, soft_cap, types, sizes: [1.0; 2] })
    })
}

/// Runs a prompt and compares what is cached, and what attention makes of it.
fn agrees(case: Case, tokens: usize) -> Option<f64> {
    let mut scene = Scene::new(case, tokens)?;
    let ids: Vec<u32> = (0..tokens as u32).collect();
    let found = scene.run(&[(0, 0, &ids)]);
    let state = scene.device.state().expect("memory");
    let width = case.heads.kv * case.heads.dim;
    for (part, exact) in [&state.k, &state.v].into_iter().enumerate() {
        let exact = scene.read(exact, tokens, width);
        for (i, ((cached, step), exact)) in scene.cached(part, tokens).into_iter().zip(&exact).enumerate() {
            // Half a step, and of q8_0 what is lost at ±127 if the scale was rounded down.
            let off = (cached - f64::from(*exact)).abs() / step;
            assert!(
                off <= 0.5625 || cached == f64::from(*exact),
                "{case:?}: part {part}, {i}: {cached}, {exact}"
            );
        }
    }
    let expected = scene.oracle(tokens);
    let rows = found.chunks(case.heads.dim).zip(expected.chunks(case.heads.dim));
    let worst = rows.map(|(f, e)| error(f, e)).fold(0.0, f64::max);
    let whole = error(&found, &expected);
    assert!(whole < ATTENTION_GATE, "{case:?}: {whole:.1e}");
    assert!(worst < 8.0 * ATTENTION_GATE, "{case:?}: worst row {worst:.1e}");
    Some(whole)
}

#[test]
fn attention_agrees_with_double_precision() {
    for case in cases() {
        let Some(error) = agrees(case, 333) else { return };
        let KvTypes { keys, values } = case.types;
        println!("{} {} {:?}: {error:.1e}", keys.name(), values.name(), case.heads);
    }
}

/// bf16 has the range of single precision, in attention too.
#[test]
fn large_keys_and_values_keep_their_size() {
    let sizes = [
        (KvType::BF16, 1e30),
        (KvType::Q8_0, 1e3),
        (KvType::F16, 1e3),
        (KvType::BF16, 1e-20),
        (KvType::FP8, 1e3),
        (KvType::FP8, 1e-3),
    ];
    for (ty, size) in sizes {
        for (heads, window, soft_cap) in SCENES {
            let types = KvTypes::same(ty);
            if types.refused(heads.dim).is_some() {
                continue;
            }
            let case =
                Case { heads: *heads, window: *window, soft_cap: *soft_cap, types, sizes: [size, size] };
            if agrees(case, 300).is_none() {
                return;
            }
        }
    }
}

/// What does not fit becomes the largest that does: nothing turns into infinities or NaN.
#[test]
fn values_beyond_the_cache_are_the_largest_that_fit() {
    for (ty, largest) in [(KvType::F16, 65504.0), (KvType::Q8_0, 65024.0), (KvType::FP8, 57344.0)] {
        for types in [KvTypes { keys: ty, values: ty }, KvTypes { keys: KvType::BF16, values: ty }] {
            let heads = Heads { q: 8, kv: 2, dim: 64 };
            let case = Case { heads, window: None, soft_cap: None, types, sizes: [1.0, 1e9] };
            let Some(mut scene) = Scene::new(case, 100) else { return };
            let ids: Vec<u32> = (0..100).collect();
            let found = scene.run(&[(0, 0, &ids)]);
            assert!(found.iter().all(|v| f64::from(v.abs()) <= largest * 1.001), "{types:?}");
            let exact = scene.read(&scene.device.state().expect("memory").v, 100, 128);
            for ((cached, _), exact) in scene.cached(1, 100).into_iter().zip(exact) {
                assert!(
                    exact.abs() < 1e6 || cached == largest * f64::from(exact.signum()),
                    "{exact}: {cached}"
                );
            }
        }
    }
}

#[test]
fn attention_has_the_same_bits_in_any_company() {
    for case in cases() {
        let tokens = 333;
        let Some(mut scene) = Scene::new(case, tokens) else { return };
        let ids: Vec<u32> = (0..tokens as u32).collect();
        let whole = scene.run(&[(0, 0, &ids)]);
        let width = scene.width;
        let mut check = |spans: &[(usize, usize, &[u32])], of: usize, skip: usize| {
            let found = scene.run(spans);
            if spans.iter().all(|(.., ids)| ids.len() == 1)
                && crate::matrix::has_wgmma(&scene.device.gpu.info)
            {
                // Which kernel ran.
                let Case { heads, types, .. } = case;
                let made_for = crate::device::decode::ATTENTION_HEADS.contains(&heads.dim)
                    && types.keys == types.values
                    && heads.q / heads.kv <= crate::device::stages::ROW_TILE;
                assert_eq!(scene.device.decodes_attention(heads).expect("a step"), made_for, "{case:?}");
            }
            let (_, position, ids) = spans[of];
            let found = &found[skip * width..][..ids.len() * width];
            let same = found.iter().zip(&whole[position * width..]).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{case:?}: {} tokens at {position}", ids.len());
        };
        // In ragged pieces, then token by token over a segment's border, then beside another sequence.
        for (from, to) in [(0, 1), (1, 8), (8, 200), (200, 250), (250, 333)] {
            check(&[(0, from, &ids[from..to])], 0, 0);
        }
        for t in 250..262 {
            check(&[(0, t, &ids[t..t + 1])], 0, 0);
        }
        check(&[(1, 0, &ids[40..140]), (0, 300, &ids[300..333])], 1, 100);
        // Every token by itself, all at once, then a few, whose segments have blocks of their own.
        for tokens in [(0..tokens).collect(), vec![331, 5, 256, 64]] {
            let alone: Vec<_> = tokens.iter().map(|t| (0, *t, &ids[*t..t + 1])).collect();
            let found = scene.run(&alone);
            for (t, found) in tokens.iter().zip(found.chunks(width)) {
                let whole = &whole[t * width..][..width];
                let same = found.iter().zip(whole).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{case:?}: the token at {t} beside {}", tokens.len());
            }
        }
    }
}

/// Blocks that go to the host and back, to another sequence's, leave attention with the same bits.
#[test]
fn blocks_are_read_and_written_as_they_lie() {
    for types in all_types() {
        let heads = Heads { q: 4, kv: 2, dim: 64 };
        let case = Case { heads, window: None, soft_cap: None, types, sizes: [1.0; 2] };
        let Some(mut scene) = Scene::new(case, 200) else { return };
        let ids: Vec<u32> = (0..200).collect();
        let whole = scene.run(&[(0, 0, &ids)]);
        let reserve = scene.device.state().expect("memory").reserve.clone();
        let (group, each) = (reserve.kv_groups[0], reserve.kv_groups[0].blocks / 2);
        let mut bytes = vec![0; group.block_bytes(types)];
        for (from, to) in blocks_of(0, 3, each).into_iter().zip(blocks_of(1, 3, each)) {
            scene.device.read_block(0, from as usize, &mut bytes).expect("a copy");
            scene.device.write_block(0, to as usize, &bytes).expect("a copy");
        }
        let rest = scene.run(&[(1, 192, &ids[192..])]);
        assert_eq!(rest, whole[192 * scene.width..], "{types:?}");
        let device = &mut scene.device;
        assert!(device.read_block(0, group.blocks, &mut bytes).is_err());
        assert!(device.write_block(1, 0, &bytes).is_err() && device.write_block(0, 0, &bytes[1..]).is_err());
    }
}

/// What a checker of memory and races has time for.
#[test]
fn small_caches_of_every_type_agree_with_double_precision() {
    for types in all_types() {
        let heads = Heads { q: 4, kv: 2, dim: 64 };
        let case = Case { heads, window: Some(20), soft_cap: None, types, sizes: [1.0; 2] };
        let Some(mut scene) = Scene::new(case, 70) else { return };
        let ids: Vec<u32> = (0..70).collect();
        let whole = scene.run(&[(0, 0, &ids)]);
        let one = scene.run(&[(0, 65, &ids[65..66])]);
        assert_eq!(one, whole[65 * scene.width..][..scene.width], "{types:?}");
    }
}

/// Heads that are turned in registers, and in shared memory.
#[test]
fn plain_heads_have_the_bits_of_any() {
    for (q, kv, dim) in [(28, 4, 128), (14, 2, 64)] {
        for style in [None, Some(RopeStyle::Adjacent), Some(RopeStyle::Halves)] {
            let heads = Heads { q, kv, dim };
            let case =
                Case { heads, window: None, soft_cap: None, types: KvTypes::default(), sizes: [1.0; 2] };
            let inv_freq = (0..dim / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / dim as f64)).collect();
            let rope = style.map(|style| Rope { style, inv_freq, magnitude: 1.1 });
            let Some(mut scene) = Scene::turned(case, 150, rope) else { return };
            let ids: Vec<u32> = (0..150).collect();
            let (first, rest): (&[u32], &[u32]) = ids.split_at(70);
            let steps = [vec![(0, 0, first)], vec![(1, 0, first), (0, 70, rest)]];
            let run = |scene: &mut Scene| steps.each_ref().map(|spans| scene.run(spans));
            let found = run(&mut scene);
            assert!(scene.device.common.finish_heads_plain.take().is_some());
            let expected = run(&mut scene);
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                assert_eq!(found.to_bits(), expected.to_bits(), "{heads:?} {style:?}");
            }
        }
    }
}

/// The kernels of `wgmma` instructions and those of `mma` instructions, on whole prompts, in ragged chunks that continue
/// one, and for several sequences at once; without a soft cap, and with one, which only the latter knows.
#[test]
fn attention_of_many_tokens_has_the_bits_of_every_gpu() {
    let scenes: [(Heads, Option<usize>, Option<f32>); 10] = [
        (Heads { q: 28, kv: 4, dim: 128 }, None, None),
        (Heads { q: 12, kv: 2, dim: 128 }, Some(150), None),
        (Heads { q: 8, kv: 8, dim: 128 }, Some(300), None),
        (Heads { q: 32, kv: 8, dim: 64 }, None, None),
        (Heads { q: 14, kv: 2, dim: 64 }, Some(70), None),
        (Heads { q: 16, kv: 4, dim: 64 }, None, Some(20.0)),
        (Heads { q: 8, kv: 8, dim: 96 }, None, None),
        (Heads { q: 6, kv: 2, dim: 96 }, Some(200), None),
        (Heads { q: 4, kv: 1, dim: 256 }, None, None),
        (Heads { q: 16, kv: 8, dim: 256 }, Some(300), None),
    ];
    for (heads, window, soft_cap) in scenes {
        let tokens = 1111;
        let Some(mut scene) =
            Scene::new(Case { heads, window, soft_cap, types: KvTypes::default(), sizes: [1.0; 2] }, tokens)
        else {
            return;
        };
        let fast = scene.device.common.attention_wgmma.take();
        if crate::matrix::has_wgmma(&scene.device.gpu.info) {
            assert!(fast.is_some());
        }
        let ids: Vec<u32> = (0..tokens as u32).collect();
        let steps: &[&[(usize, usize, &[u32])]] = &[
            &[(0, 0, &ids)],
            &[(0, 0, &ids[..515])],
            &[(0, 515, &ids[515..900]), (1, 0, &ids[..129])],
            &[(1, 129, &ids[129..321]), (0, 900, &ids[900..])],
        ];
        for (step, spans) in steps.iter().enumerate() {
            scene.device.common.attention_wgmma = None;
            let expected = scene.run(spans);
            scene.device.common.attention_wgmma = fast;
            let found = scene.run(spans);
            let same = found.iter().zip(&expected).all(|(a, b)| a.is_finite() && a.to_bits() == b.to_bits());
            assert!(same, "{heads:?} {window:?} {soft_cap:?}: step {step}");
        }
    }
}

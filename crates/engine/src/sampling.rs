//! Sampling: the one specification.
//!
//! A token is a pure function of the logits, the [`SampleSpec`], the [`Adjust`]ments and the mask. [`sample`] is that function; a
//! device that samples by itself computes the same one. The steps that [`Samplers`] names are taken in its order, which is this
//! one by default; a step that it does not name is not taken.
//!
//! 0. **Refuse** NaN anywhere in the logits, once all adjustments before the first other step are made. Candidates are the tokens
//!    the mask allows whose logit is above −∞; `m` is always the largest logit of those that are left. Of two
//!    equal logits the one with the lower id ranks higher, everywhere; −0 = +0.
//! 1. **Biases** are added, always first. **Penalties** ([`Penalties`]), **DRY** ([`Dry`]).
//! 2. **Top-nσ** (Tang, Liu, Xu, Yin, "Top-nσ: not all logits are you need", 2024): keep candidates with a logit of at least
//!    `m − n·σ`, where σ is the standard deviation of all candidates' logits (f64 sums in ascending id).
//!    **Top-k**: keep the `k` highest ranking candidates.
//! 3. **Typical**: keep the shortest run of most typical candidates whose weights `w(1)` sum to at least
//!    `ceil(typical_p · total)` (an f64 product); never fewer than one. The smaller `|(l − m) − mean|` the more typical,
//!    then the higher ranking.
//! 4. **Top-p**: keep the shortest run of highest ranking candidates whose weights `w(1)` sum to at least
//!    `ceil(top_p · total)` (an f64 product); never fewer than one.
//! 5. **Min-p**: keep those with `w(1) ≥ min_p · 2^40`.
//!    **XTC** (P. E. Weidmann, "exclude top choices", 2024), if the highest 53 of the last 64 bits of the random number below, as a share of 2^53, are
//!    less than `xtc_probability`: of the candidates with `w(1) ≥ ceil(xtc_threshold · total)` keep only the lowest ranking.
//! 6. **Temperature**: from here on a candidate weighs `w(temperature)`. With a `dynatemp_range` `r` the temperature is instead
//!    `t₀ + (t₁ − t₀)·h^exponent`, where `t₀ = max(temperature − r, 0)`, `t₁ = temperature + r`, and `h` is the entropy of the
//!    weights `w(1)` over that of as many equal ones (f64 sums in ascending id).
//! 7. **Mirostat** ([`Mirostat`]), always here: keep those with `w ≥ ceil(2^−max(μ, 0) · total)` (f64 products), and the highest
//!    ranking one. With it steps 2 to 5 are not taken.
//! 8. **Draw**: `r` is the first 64 bits of Philox4x32-10 with key `seed` and counter `position`; the token is the
//!    first in ascending id whose running sum of weights exceeds `floor(r · total / 2^64)`.
//!
//! **Greedy**: if there is a step of temperature and the temperature is 0, the token is the highest ranking candidate after
//! all adjustments, whatever else there is.
//!
//! In other orders, where a step comes after the temperature `T`, `w(T)` takes the place of `w(1)` and `(l − m)/T` that of
//! `l − m`; before an adjustment there, all finite logits are divided by it (in f64, by at least 10^-30, to within f32's finite numbers), and then it is 1.
//!
//! The weight of a logit `l` is the *integer* `w(T) = floor(exp((l − m) / T) · 2^40)`, computed in f64 (`l = m` weighs
//! 2^40 even if both are +∞). Integer sums are exact, so no order of addition, and thus no way of dividing the work,
//! can be seen in the result; what an integer cannot hold has a probability below 10^-12 of the largest. `exp` is the
//! one in this file: f64 additions and multiplications only, so that no platform's libm can be seen either.
//!
//! Locally typical sampling (Meister, Pimentel, Wiher, Cotterell, 2022, section 4) ranks tokens by how far their
//! information `−ln p` is from its expectation, the entropy. With `p = w(1) / total`, `−ln p` is `ln total − (l − m)`, so
//! `ln total` cancels: what counts is the distance of `l − m` from its `mean = Σ w·(l − m) / Σ w`. The products are
//! integers too: `trunc(w · (l − m) · 2^20)`, in units of 2^-60.
//!
//! A row that has adjustments, that has a step or an order which only the host knows (top-nσ, typical, XTC, a range of
//! temperatures, mirostat, any order but the default one), or that reports log-probabilities asks its executor for
//! [`Want::Logits`](crate::executor::Want::Logits) and is sampled on the host.

mod adjust;
mod chain;
mod dry;
mod filters;
mod logprobs;
mod mirostat;
mod order;
mod params;
mod penalties;
mod philox;

use std::borrow::Cow;

use crate::executor::TokenId;

pub use adjust::{Adjust, bias};
pub use chain::Drawn;
pub use dry::Dry;
pub use logprobs::{Logprobs, logprobs};
pub use mirostat::Mirostat;
pub use order::{Sampler, Samplers, SamplersError};
pub use params::SamplingParams;
pub use penalties::{Penalties, penalize};
pub use philox::philox4x32_10;

/// Largest vocabulary: with it the sum of all weights still fits 64 bits.
pub const MAX_VOCAB: usize = 1 << 23;

/// Weight of the most probable token.
const ONE: f64 = (1u64 << 40) as f64;

/// What [`sample`] does. A device may do it by itself, except for what [`SampleSpec::device_can`] says it is never asked for.
/// Ties go to the lower id; the random number is Philox4x32-10 of (`seed`, `position`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleSpec {
    /// 0 is greedy: the largest logit, whatever the other fields say, but for `samplers` without this step.
    pub temperature: f32,
    /// Keep the k largest; 0 keeps all.
    pub top_k: u32,
    /// Keep the most typical tokens that together have this probability; 1 keeps all.
    pub typical_p: f32,
    /// Keep the smallest set whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens of at least this share of the largest probability; 0 keeps all.
    pub min_p: f32,
    /// Keep tokens whose logit is at most so many standard deviations below the largest; 0 keeps all.
    pub top_n_sigma: f32,
    /// How probably all tokens of at least `xtc_threshold` but the least probable of them are dropped.
    pub xtc_probability: f32,
    /// See there; above 0.5 nothing is dropped.
    pub xtc_threshold: f32,
    /// The temperature is between so much less and so much more, by the entropy; 0 keeps it.
    pub dynatemp_range: f32,
    /// The power of the entropy's share that it follows.
    pub dynatemp_exponent: f32,
    /// The most bits of surprise that a token may have, instead of the filters: [`Mirostat`]'s `μ`.
    pub mirostat: Option<f64>,
    /// The steps that are taken, and in which order.
    pub samplers: Samplers,
    /// Key of the random numbers.
    pub seed: u64,
    /// Position of the token being drawn: the counter of the random numbers.
    pub position: u64,
}

impl SampleSpec {
    /// Whether the highest ranking candidate is the token.
    fn is_greedy(&self) -> bool {
        self.temperature == 0.0 && self.samplers.contains(Sampler::Temperature)
    }

    /// Whether [`sample`] may be left to a device: in range, and greedy or without the steps, and the orders, of the host.
    pub fn device_can(&self) -> bool {
        let plain = self.typical_p == 1.0
            && self.top_n_sigma == 0.0
            && self.xtc_probability == 0.0
            && self.dynatemp_range == 0.0
            && self.mirostat.is_none()
            && self.samplers == Samplers::DEFAULT;
        (self.is_greedy() || plain) && check(&[], self, None).is_ok()
    }

    /// The 64 random bits of the draw.
    pub fn random(&self) -> u64 {
        self.randoms()[0]
    }

    /// The 64 random bits of the draw, and those that decide on XTC.
    fn randoms(&self) -> [u64; 2] {
        let split = |x: u64| [x as u32, (x >> 32) as u32];
        let [p0, p1] = split(self.position);
        let [r0, r1, r2, r3] = philox4x32_10([p0, p1, 0, 0], split(self.seed));
        [u64::from(r1) << 32 | u64::from(r0), u64::from(r3) << 32 | u64::from(r2)]
    }

    /// Whether XTC happens.
    fn excludes(&self) -> bool {
        // The difference to 2^64 would round to it.
        let share = (self.randoms()[1] >> 11) as f64 / (1u64 << 53) as f64;
        share < f64::from(self.xtc_probability)
    }

    /// The smallest weight `w(1)` that min-p keeps.
    pub fn least_weight(&self) -> u64 {
        (f64::from(self.min_p) * ONE).ceil() as u64
    }

    /// Always the largest logit.
    pub const GREEDY: SampleSpec = SampleSpec {
        temperature: 0.0,
        top_k: 0,
        typical_p: 1.0,
        top_p: 1.0,
        min_p: 0.0,
        top_n_sigma: 0.0,
        xtc_probability: 0.0,
        xtc_threshold: 0.1,
        dynatemp_range: 0.0,
        dynatemp_exponent: 1.0,
        mirostat: None,
        samplers: Samplers::DEFAULT,
        seed: 0,
        position: 0,
    };
}

/// Why there is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The model computed a NaN.
    #[error(
        "the logit of token {id} is NaN: the weights may be damaged (`minfer inspect --check` names such)"
    )]
    Nan {
        /// The first one.
        id: TokenId,
    },
    /// The mask forbids every token, or every logit is −∞.
    #[error("no token is left to choose from")]
    NoCandidate,
    /// The mask has fewer bits than there are tokens.
    #[error("the mask has {found} words, expected {expected}")]
    Mask {
        /// Words needed.
        expected: usize,
        /// Words given.
        found: usize,
    },
    /// More tokens than [`MAX_VOCAB`].
    #[error("{found} logits, at most {MAX_VOCAB} can be sampled from")]
    Vocab {
        /// Logits given.
        found: usize,
    },
    /// A field of the specification is not a number in its range.
    #[error("{field} is out of range")]
    Spec {
        /// Which.
        field: &'static str,
    },
}

/// Memory that [`sample`] reuses.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Candidates: see [`rank`].
    ranks: Vec<u64>,
    /// Weights of the candidates.
    weights: Vec<u64>,
    /// Candidates by how typical they are: bits of the distance, then rank.
    distances: Vec<(u64, u64)>,
    /// Adjusted logits, one per token.
    logits: Vec<f32>,
    /// Occurrences in the penalty window, or lengths of repetitions, one per token; all zero between calls.
    counts: Vec<u32>,
    /// How far the tokens before each position agree with the last ones.
    matches: Vec<usize>,
}

/// Chooses a token by the specification of this module.
///
/// `logits` has one per token of the vocabulary, `mask` one bit per token (bit `i % 32` of word `i / 32`).
pub fn sample(
    logits: &[f32],
    spec: &SampleSpec,
    mask: Option<&[u32]>,
    scratch: &mut Scratch,
) -> Result<TokenId, SampleError> {
    check(logits, spec, mask)?;
    let drawn = chain::choose(&mut Cow::Borrowed(logits), &Adjust::default(), spec, mask, scratch)?;
    Ok(drawn.token)
}

/// [`sample`] with adjustments, leaving the logits as they are.
///
/// # Errors
///
/// As [`sample`].
pub fn sample_adjusted(
    logits: &[f32],
    adjust: &Adjust<'_>,
    spec: &SampleSpec,
    mask: Option<&[u32]>,
    scratch: &mut Scratch,
) -> Result<Drawn, SampleError> {
    check(logits, spec, mask)?;
    if adjust.is_nothing() {
        return chain::choose(&mut Cow::Borrowed(logits), adjust, spec, mask, scratch);
    }
    let mut adjusted = std::mem::take(&mut scratch.logits);
    adjusted.clear();
    adjusted.extend_from_slice(logits);
    let mut adjusted = Cow::Owned(adjusted);
    let drawn = chain::choose(&mut adjusted, adjust, spec, mask, scratch);
    scratch.logits = adjusted.into_owned();
    drawn
}

fn check(logits: &[f32], spec: &SampleSpec, mask: Option<&[u32]>) -> Result<(), SampleError> {
    if logits.len() > MAX_VOCAB {
        return Err(SampleError::Vocab { found: logits.len() });
    }
    let expected = logits.len().div_ceil(32);
    if let Some(mask) = mask.filter(|mask| mask.len() < expected) {
        return Err(SampleError::Mask { expected, found: mask.len() });
    }
    let unit = 0.0..=1.0;
    let fields = [
        ("temperature", spec.temperature.is_finite() && spec.temperature >= 0.0),
        ("typical_p", unit.contains(&spec.typical_p)),
        ("top_p", unit.contains(&spec.top_p)),
        ("min_p", unit.contains(&spec.min_p)),
        ("top_n_sigma", spec.top_n_sigma.is_finite() && spec.top_n_sigma >= 0.0),
        ("xtc_probability", unit.contains(&spec.xtc_probability)),
        ("xtc_threshold", unit.contains(&spec.xtc_threshold)),
        ("dynatemp_range", spec.dynatemp_range.is_finite() && spec.dynatemp_range >= 0.0),
        ("mirostat", spec.mirostat.is_none_or(|mu| !mu.is_nan())),
        ("dynatemp_exponent", spec.dynatemp_exponent.is_finite() && spec.dynatemp_exponent >= 0.0),
    ];
    match fields.iter().find(|(_, ok)| !ok) {
        Some(&(field, _)) => Err(SampleError::Spec { field }),
        None => Ok(()),
    }
}

fn allows(mask: Option<&[u32]>, id: usize) -> bool {
    mask.is_none_or(|mask| mask[id / 32] >> (id % 32) & 1 == 1)
}

/// The highest ranking candidate and its logit. Sixteen independent maxima per pass keep the loop free of branches
/// and of a dependency from one logit to the next.
fn largest(logits: &[f32], mask: Option<&[u32]>) -> Result<(TokenId, f32), SampleError> {
    const LANES: usize = 16;
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut nan = [0u32; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
            nan[i] |= u32::from(chunk[i].is_nan());
        }
    }
    if nan != [0; LANES] || rest.iter().any(|l| l.is_nan()) {
        let id = logits.iter().position(|l| l.is_nan()).unwrap_or(0);
        return Err(SampleError::Nan { id: id as TokenId });
    }
    let max = if mask.is_none() {
        lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
    } else {
        let allowed = logits.iter().enumerate().filter(|&(id, _)| allows(mask, id));
        allowed.map(|(_, &logit)| logit).fold(f32::NEG_INFINITY, f32::max)
    };
    // First the chunk, again without branches inside.
    let without = |chunk: &&[f32; LANES]| !chunk.iter().fold(false, |found, &logit| found | (logit == max));
    let before = chunks.iter().take_while(without).count() * LANES;
    let mut ids = logits.iter().enumerate().skip(before);
    match ids.find(|&(id, &logit)| logit == max && allows(mask, id)) {
        Some((id, _)) if max > f32::NEG_INFINITY => Ok((id as TokenId, max)),
        _ => Err(SampleError::NoCandidate),
    }
}

/// A number that ascends as candidates rank lower: the logit's bits, ordered and inverted, above the id. (Adding 0
/// turns −0 into +0.)
fn rank(logit: f32, id: usize) -> u64 {
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(!ascending) << 32 | id as u64
}

fn id_of(rank: u64) -> TokenId {
    rank as TokenId
}

/// Fills `ranks` with the `k` highest ranking candidates (all, if `k` is 0) of at least `least`, in no particular order. One pass: a
/// candidate no better than the k-th best so far is dropped at once, the others are selected from whenever the buffer fills.
fn top_k(logits: &[f32], mask: Option<&[u32]>, k: usize, least: f64, ranks: &mut Vec<u64>) {
    ranks.clear();
    let select = |ranks: &mut Vec<u64>| {
        let (_, &mut kth, _) = ranks.select_nth_unstable(k - 1);
        ranks.truncate(k);
        logits[id_of(kth) as usize]
    };
    let full = if k == 0 { usize::MAX } else { k.saturating_mul(2).max(1024) };
    let mut kth = f32::NEG_INFINITY;
    for (id, &logit) in logits.iter().enumerate() {
        // The later of two equals has the higher id, so it ranks lower.
        if logit > kth && f64::from(logit) >= least && allows(mask, id) {
            ranks.push(rank(logit, id));
            if ranks.len() == full {
                kth = select(ranks);
            }
        }
    }
    if k > 0 && ranks.len() > k {
        select(ranks);
    }
}

/// Keeps the shortest run of most typical candidates that has `typical_p` of the weight. `max` is the largest logit.
fn typical(
    logits: &[f32],
    (max, temperature): (f32, f32),
    typical_p: f32,
    ranks: &mut Vec<u64>,
    distances: &mut Vec<(u64, u64)>,
) {
    /// Units of the integer products.
    const UNIT: f64 = (1u64 << 20) as f64;
    let logit = |rank: u64| logits[id_of(rank) as usize];
    let below = |rank: u64| match logit(rank) {
        logit if logit == max => 0.0,
        logit => (f64::from(logit) - f64::from(max)) / f64::from(temperature),
    };
    let weight = |rank: u64| weight(logit(rank), max, temperature);
    let (mut total, mut products) = (0, 0);
    for &rank in ranks.iter() {
        let weight = weight(rank);
        if weight > 0 {
            total += weight;
            products += (weight as f64 * below(rank) * UNIT) as i128;
        }
    }
    let mean = products as f64 / UNIT / total as f64;
    distances.clear();
    // Bits of numbers that are not negative ascend with them.
    distances.extend(ranks.iter().map(|&rank| ((below(rank) - mean).abs().to_bits(), rank)));
    shortest_run(distances, typical_p, |(_, rank)| weight(rank));
    ranks.clear();
    ranks.extend(distances.iter().map(|&(_, rank)| rank));
}

/// Keeps the shortest run of smallest items that has this share of the weight, at least one item. They are put in order
/// only as far as needed, in stretches that grow.
fn shortest_run<T: Copy + Ord>(items: &mut Vec<T>, share: f32, weight: impl Fn(T) -> u64) {
    let total: u64 = items.iter().map(|&item| weight(item)).sum();
    let goal = (f64::from(share) * total as f64).ceil() as u64;
    let (mut kept, mut ordered, mut sum) = (0, 0, 0);
    while kept < items.len() && (kept == 0 || sum < goal) {
        if kept == ordered {
            let rest = &mut items[ordered..];
            let stretch = (4 * ordered).max(64).min(rest.len());
            if stretch < rest.len() {
                rest.select_nth_unstable(stretch);
            }
            rest[..stretch].sort_unstable();
            ordered += stretch;
        }
        sum += weight(items[kept]);
        kept += 1;
    }
    items.truncate(kept);
}

/// Index of the weight that the random number falls on; `None` only if all are 0.
fn draw(weights: &[u64], random: u64) -> Option<usize> {
    let total: u64 = weights.iter().sum();
    let target = ((u128::from(random) * u128::from(total)) >> 64) as u64;
    let mut sum = 0;
    weights.iter().position(|weight| {
        sum += weight;
        sum > target
    })
}

/// `floor(exp((logit − max) / temperature) · 2^40)`.
fn weight(logit: f32, max: f32, temperature: f32) -> u64 {
    if logit == max {
        return ONE as u64;
    }
    (exp((f64::from(logit) - f64::from(max)) / f64::from(temperature)) * ONE) as u64
}

/// `exp(x)` for `x ≤ 0`, within 2 units in the last place; 0 where it would be below 2^-1021. `x = n·ln 2 + r`, then the
/// Taylor series of `exp(r)`, `|r| ≤ ln 2 / 2`, whose remainder after `r^13` is below 2^-57. The two parts of ln 2
/// are fdlibm's: `n` times the first is exact.
fn exp(x: f64) -> f64 {
    const LN2_HI: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN2_LO: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
    /// 1.5 · 2^52: adding it leaves no bit below one, which rounds to an integer.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    /// 1/n! for n = 13 … 0.
    const SERIES: [f64; 14] = {
        let mut series = [1.0; 14];
        let (mut n, mut factorial) = (1, 1.0);
        while n < 14 {
            factorial *= n as f64;
            series[13 - n] = 1.0 / factorial;
            n += 1;
        }
        series
    };
    if x < -707.0 {
        return 0.0;
    }
    let n = (x * std::f64::consts::LOG2_E + ROUND) - ROUND;
    let r = (x - n * LN2_HI) - n * LN2_LO;
    let power = SERIES.iter().fold(0.0, |sum, term| sum * r + term);
    power * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests;

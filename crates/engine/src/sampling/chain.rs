//! The steps of the specification, one after the other, on the candidates that are left.

use std::borrow::Cow;

use super::{
    Adjust, SampleError, SampleSpec, Sampler, Scratch, allows, bias, draw, filters, id_of, largest, mirostat,
    rank, shortest_run, top_k, typical, weight,
};
use crate::executor::TokenId;

/// Least temperature that logits are divided by.
const LEAST_DIVISOR: f64 = 1e-30;

/// A token and how it was come by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn {
    /// The token.
    pub token: TokenId,
    /// `−log2` of its share of the weights it was drawn from.
    pub surprise: f64,
}

/// Chooses by a valid specification. Logits that are changed are copied if they are borrowed.
pub(super) fn choose(
    logits: &mut Cow<'_, [f32]>,
    adjust: &Adjust<'_>,
    spec: &SampleSpec,
    mask: Option<&[u32]>,
    scratch: &mut Scratch,
) -> Result<Drawn, SampleError> {
    if !adjust.bias.is_empty() {
        bias(logits.to_mut(), adjust.bias);
    }
    let adjusts = |step: &&Sampler| matches!(step, Sampler::Penalties | Sampler::Dry);
    let steps = spec.samplers.steps();
    // Filters do nothing where the token is the highest ranking one anyway.
    let leading = if spec.is_greedy() { steps.len() } else { steps.iter().take_while(adjusts).count() };
    for &step in steps[..leading].iter().filter(|&&step| adjust.has(step)) {
        adjust.step(step, logits.to_mut(), scratch);
    }
    let (token, max) = largest(logits, mask)?;
    if spec.is_greedy() {
        return Ok(Drawn { token, surprise: 0.0 });
    }
    let ranks = std::mem::take(&mut scratch.ranks);
    let mut candidates =
        Candidates { logits, mask, ranks, gathered: false, least: None, max, temperature: 1.0 };
    let taken = steps[leading..].iter().try_for_each(|&step| candidates.step(step, spec, adjust, scratch));
    let drawn = taken.and_then(|()| candidates.draw(spec, &mut scratch.weights));
    scratch.ranks = candidates.ranks;
    drawn
}

/// Who may still be chosen.
struct Candidates<'a, 'l> {
    logits: &'a mut Cow<'l, [f32]>,
    mask: Option<&'a [u32]>,
    /// They, in no particular order, once they are `gathered`. Before they are all that the mask allows.
    ranks: Vec<u64>,
    gathered: bool,
    /// The least logit of those who will be gathered.
    least: Option<f64>,
    /// The largest logit among them.
    max: f32,
    /// What logits are to be divided by.
    temperature: f32,
}

impl Candidates<'_, '_> {
    fn step(
        &mut self,
        step: Sampler,
        spec: &SampleSpec,
        adjust: &Adjust<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), SampleError> {
        match step {
            Sampler::Penalties | Sampler::Dry if adjust.has(step) => {
                self.gather(0);
                self.divide();
                adjust.step(step, self.logits.to_mut(), scratch);
                self.rank_again()?;
            }
            Sampler::Temperature => self.temperature = self.temperature_of(spec),
            // It is there instead of the filters.
            _ if spec.mirostat.is_some() => {}
            Sampler::TopNSigma if spec.top_n_sigma > 0.0 => self.top_n_sigma(spec.top_n_sigma),
            Sampler::TopK if spec.top_k > 0 => self.top_k(spec.top_k as usize),
            Sampler::Typical if spec.typical_p < 1.0 => {
                self.gather(0);
                let scale = (self.max, self.temperature);
                typical(self.logits, scale, spec.typical_p, &mut self.ranks, &mut scratch.distances);
                self.highest()?;
            }
            Sampler::TopP if spec.top_p < 1.0 => {
                self.gather(0);
                let weight = weights(self.logits, self.max, self.temperature);
                shortest_run(&mut self.ranks, spec.top_p, weight);
            }
            Sampler::MinP if spec.min_p > 0.0 => {
                self.gather(0);
                let weight = weights(self.logits, self.max, self.temperature);
                self.ranks.retain(|&rank| weight(rank) >= spec.least_weight());
            }
            Sampler::Xtc if spec.xtc_probability > 0.0 && spec.excludes() => {
                self.gather(0);
                let weight = weights(self.logits, self.max, self.temperature);
                filters::exclude_top_choices(&mut self.ranks, spec.xtc_threshold, weight);
                self.highest()?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Lists them, if they are not yet: the `k` highest ranking ones, or all if `k` is 0.
    fn gather(&mut self, k: usize) {
        if !self.gathered {
            let least = self.least.unwrap_or(f64::NEG_INFINITY);
            top_k(self.logits, self.mask, k, least, &mut self.ranks);
            self.gathered = true;
        }
    }

    /// Lists them in ascending id.
    fn sort(&mut self) {
        self.gather(0);
        self.ranks.sort_unstable_by_key(|&rank| id_of(rank));
    }

    fn top_n_sigma(&mut self, n_sigma: f32) {
        if self.gathered {
            self.sort();
            let (logits, ranks) = (&self.logits, &mut self.ranks);
            let logit = |&rank: &u64| logits[id_of(rank) as usize];
            let least = filters::least_logit(ranks.iter().map(logit), self.max, n_sigma);
            ranks.retain(|rank| f64::from(logit(rank)) >= least);
        } else {
            let allowed = self.logits.iter().enumerate().filter(|&(id, _)| allows(self.mask, id));
            let candidates = allowed.map(|(_, &logit)| logit).filter(|logit| *logit > f32::NEG_INFINITY);
            self.least = Some(filters::least_logit(candidates, self.max, n_sigma));
        }
    }

    fn top_k(&mut self, k: usize) {
        let gathered = self.gathered;
        self.gather(k);
        if gathered && k < self.ranks.len() {
            self.ranks.select_nth_unstable(k - 1);
            self.ranks.truncate(k);
        }
    }

    /// The temperature, fixed or by the entropy.
    fn temperature_of(&mut self, spec: &SampleSpec) -> f32 {
        if spec.dynatemp_range == 0.0 {
            return spec.temperature;
        }
        self.sort();
        let range = (spec.temperature, spec.dynatemp_range, spec.dynatemp_exponent);
        filters::dynamic_temperature(&self.ranks, self.logits, self.max, range)
    }

    /// Divides the logits by the temperature, which then has been.
    fn divide(&mut self) {
        if self.temperature != 1.0 {
            let divisor = f64::from(self.temperature).max(LEAST_DIVISOR);
            for logit in self.logits.to_mut().iter_mut().filter(|logit| logit.is_finite()) {
                *logit = ((f64::from(*logit) / divisor) as f32).clamp(f32::MIN, f32::MAX);
            }
            self.temperature = 1.0;
        }
    }

    /// Ranks them by logits that have changed; those at −∞ are candidates no more.
    fn rank_again(&mut self) -> Result<(), SampleError> {
        let logits = &self.logits;
        self.ranks.retain_mut(|candidate| {
            let id = id_of(*candidate) as usize;
            *candidate = rank(logits[id], id);
            logits[id] > f32::NEG_INFINITY
        });
        self.highest()
    }

    /// Finds the largest logit of those that are left.
    fn highest(&mut self) -> Result<(), SampleError> {
        // The bits of a rank descend with the logit.
        let first = self.ranks.iter().min().ok_or(SampleError::NoCandidate)?;
        self.max = self.logits[id_of(*first) as usize];
        Ok(())
    }

    fn draw(&mut self, spec: &SampleSpec, weights: &mut Vec<u64>) -> Result<Drawn, SampleError> {
        self.sort();
        let weight = self::weights(self.logits, self.max, self.temperature);
        weights.clear();
        weights.extend(self.ranks.iter().map(|&rank| weight(rank)));
        if let Some(mu) = spec.mirostat {
            let best = self.ranks.iter().enumerate().min_by_key(|(_, rank)| **rank).map(|(at, _)| at);
            mirostat::exclude(weights, mu, best);
        }
        let index = draw(weights, spec.random()).ok_or(SampleError::NoCandidate)?;
        let total = weights.iter().sum();
        Ok(Drawn { token: id_of(self.ranks[index]), surprise: mirostat::surprise(weights[index], total) })
    }
}

/// What candidates weigh.
fn weights(logits: &[f32], max: f32, temperature: f32) -> impl Fn(u64) -> u64 {
    move |rank| weight(logits[id_of(rank) as usize], max, temperature)
}

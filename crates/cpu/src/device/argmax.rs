//! The largest logit, found where the logits are made.

/// The best of the logits that a worker made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    value: f32,
    id: usize,
    nan: bool,
}

impl Best {
    /// Of none.
    pub(super) const NONE: Best = Best { value: f32::NEG_INFINITY, id: 0, nan: false };

    /// The better of two; the lower id of equals.
    pub(super) fn or(self, other: Best) -> Best {
        let nan = self.nan | other.nan;
        let first = self.value > other.value || self.value == other.value && self.id <= other.id;
        Best { nan, ..if first { self } else { other } }
    }

    /// Adds `logits`, of the tokens from `first` on. Sixteen maxima side by side, for vectors; who has the largest is looked
    /// for only if it is better than what was there.
    pub(super) fn add(&mut self, logits: &[f32], first: usize) {
        let mut lanes = [f32::NEG_INFINITY; 16];
        let mut nans = [0u32; 16];
        let (chunks, rest) = logits.as_chunks::<16>();
        for chunk in chunks {
            for i in 0..16 {
                lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
                nans[i] |= u32::from(chunk[i].is_nan());
            }
        }
        self.nan |= nans != [0; 16] || rest.iter().any(|l| l.is_nan());
        let value = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
        if value > self.value || value == self.value && first < self.id {
            let before =
                chunks.iter().take_while(|chunk| !chunk.iter().fold(false, |any, l| any | (*l == value)));
            let start = 16 * before.count();
            let at = start + logits[start..].iter().position(|l| *l == value).unwrap_or(0);
            (self.value, self.id) = (value, first + at);
        }
    }

    /// The token, unless a logit is NaN or none is above −∞.
    pub(super) fn token(self) -> Option<u32> {
        let any = !self.nan && self.value > f32::NEG_INFINITY;
        any.then(|| u32::try_from(self.id).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::Best;

    fn of(logits: &[f32], first: usize) -> Best {
        let mut best = Best::NONE;
        best.add(logits, first);
        best
    }

    #[test]
    fn the_lowest_of_equals_and_nothing_of_nan() {
        let mut logits = vec![-3.5f32; 70];
        for id in [69, 41, 17] {
            logits[id] = 2.0;
        }
        // Parts in any order.
        let ranges = [0..20, 20..42, 42..70];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut one = Best::NONE;
            order.iter().for_each(|i| one.add(&logits[ranges[*i].clone()], ranges[*i].start));
            assert_eq!(one.token(), Some(17));
            let parts = order.map(|i| of(&logits[ranges[i].clone()], ranges[i].start));
            assert_eq!(parts.into_iter().fold(Best::NONE, Best::or).token(), Some(17));
        }
        assert_eq!(of(&[-0.0, 0.0], 0).token(), Some(0));
        assert_eq!(of(&[f32::NEG_INFINITY; 40], 0).token(), None);
        assert_eq!(of(&[f32::NEG_INFINITY, f32::MIN], 5).token(), Some(6));
        for at in [0, 33, 69] {
            let mut logits = logits.clone();
            logits[at] = f32::NAN;
            assert_eq!(of(&logits, 0).or(of(&[9.0], 70)).token(), None, "{at}");
        }
    }
}

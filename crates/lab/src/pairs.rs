//! Which of two variants is better, by interleaved pairs.
//!
//! Machines drift: clocks, heat, neighbours. So the variants take turns, each pair gives one ratio, and figures of
//! different sittings are never compared. Whether the ratios could be chance is asked by the sign test, which assumes
//! nothing of their distribution.

/// Two variants, measured side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Pairs {
    /// Measurements of the first variant and of the second one, taken one after the other.
    pub pairs: Vec<(f64, f64)>,
}

/// What [`Pairs`] say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Medians of both.
    pub medians: (f64, f64),
    /// Median of second / first.
    pub ratio: f64,
    /// Pairs in which the second one is larger, and in which it is smaller.
    pub larger: usize,
    /// See `larger`.
    pub smaller: usize,
    /// Probability of a split at least as uneven if neither were larger (two-sided).
    pub chance: f64,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// Probability that of `n` fair coins at most `least` or at least `n − least` fall on one side.
fn two_sided(least: usize, n: usize) -> f64 {
    let mut ways = 1.0;
    let mut sum = 0.0;
    for k in 0..=least {
        sum += ways;
        ways *= (n - k) as f64 / (k + 1) as f64;
    }
    (2.0 * sum * 0.5f64.powi(n as i32)).min(1.0)
}

impl Pairs {
    /// Medians, ratio and sign test; `None` without pairs.
    pub fn verdict(&self) -> Option<Verdict> {
        if self.pairs.is_empty() {
            return None;
        }
        let count = |f: fn(&(f64, f64)) -> bool| self.pairs.iter().filter(|pair| f(pair)).count();
        let (larger, smaller) = (count(|(a, b)| b > a), count(|(a, b)| b < a));
        Some(Verdict {
            medians: (median(self.pairs.iter().map(|p| p.0)), median(self.pairs.iter().map(|p| p.1))),
            ratio: median(self.pairs.iter().map(|(a, b)| b / a)),
            larger,
            smaller,
            chance: two_sided(larger.min(smaller), larger + smaller),
        })
    }
}

impl Verdict {
    /// A row of a Markdown table: both medians, how many per cent the second one is away, pairs, and the chance.
    pub fn row(&self, first: &str, second: &str) -> String {
        let pairs = self.larger + self.smaller;
        format!(
            "| {first} | {second} | {:.4} | {:.4} | {:+.2} % | {}/{pairs} larger | {:.3} |",
            self.medians.0,
            self.medians.1,
            100.0 * (self.ratio - 1.0),
            self.larger,
            self.chance
        )
    }

    /// The head of that table.
    pub const HEAD: &'static str = "| first | second | median | median | second / first | pairs | chance |\n|---|---|---|---|---|---|---|";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_of_five_pairs_are_chance_in_one_of_sixteen() {
        let pairs = Pairs { pairs: (0..5).map(|i| (100.0 + f64::from(i), 102.8 + f64::from(i))).collect() };
        let verdict = pairs.verdict().expect("pairs");
        assert_eq!((verdict.larger, verdict.smaller, verdict.chance), (5, 0, 0.0625));
        assert_eq!(verdict.medians, (102.0, 104.8));
        assert!(verdict.row("a", "b").contains("5/5 larger"), "{}", verdict.row("a", "b"));
    }

    #[test]
    fn the_sign_test_is_that_of_the_tables() {
        // Conover, "Practical Nonparametric Statistics": of 10 coins at most 1 on a side, 2 · 11 / 1024.
        assert!((two_sided(1, 10) - 22.0 / 1024.0).abs() < 1e-12);
        assert_eq!(two_sided(5, 10), 1.0);
        assert_eq!(two_sided(0, 0), 1.0);
        assert_eq!(Pairs { pairs: Vec::new() }.verdict(), None);
    }

    #[test]
    fn ties_say_nothing() {
        let pairs = Pairs { pairs: vec![(1.0, 1.0), (1.0, 2.0), (3.0, 3.0)] };
        let verdict = pairs.verdict().expect("pairs");
        assert_eq!((verdict.larger, verdict.smaller, verdict.ratio), (1, 0, 1.0));
    }
}

//! In which order the steps of sampling are taken.

use std::fmt;
use std::str::FromStr;

/// A step of sampling; see [the specification](crate::sampling).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampler {
    /// [`Penalties`](super::Penalties).
    Penalties,
    /// [`Dry`](super::Dry).
    Dry,
    /// Top-nσ.
    TopNSigma,
    /// Top-k.
    TopK,
    /// Typical.
    Typical,
    /// Top-p.
    TopP,
    /// Min-p.
    MinP,
    /// XTC.
    Xtc,
    /// Temperature, fixed or by the entropy.
    Temperature,
}

/// How many there are.
const ALL: usize = 9;

impl Sampler {
    /// Its name, which is llama.cpp's.
    pub fn name(self) -> &'static str {
        match self {
            Sampler::Penalties => "penalties",
            Sampler::Dry => "dry",
            Sampler::TopNSigma => "top_n_sigma",
            Sampler::TopK => "top_k",
            Sampler::Typical => "typ_p",
            Sampler::TopP => "top_p",
            Sampler::MinP => "min_p",
            Sampler::Xtc => "xtc",
            Sampler::Temperature => "temperature",
        }
    }
}

/// The steps of sampling that are taken, in their order, each at most once. As text their names with semicolons between.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Samplers {
    /// The first `len`; the others are as in [`Samplers::DEFAULT`], so that equals are equal.
    steps: [Sampler; ALL],
    len: usize,
}

impl Samplers {
    /// All of them, in llama.cpp's order.
    pub const DEFAULT: Samplers = Samplers {
        steps: [
            Sampler::Penalties,
            Sampler::Dry,
            Sampler::TopNSigma,
            Sampler::TopK,
            Sampler::Typical,
            Sampler::TopP,
            Sampler::MinP,
            Sampler::Xtc,
            Sampler::Temperature,
        ],
        len: ALL,
    };

    /// These steps.
    ///
    /// # Errors
    ///
    /// The step that is there twice.
    pub fn new(steps: &[Sampler]) -> Result<Samplers, Sampler> {
        let twice = steps.iter().enumerate().find(|&(at, step)| steps[..at].contains(step));
        match twice {
            Some((_, &step)) => Err(step),
            None => {
                let mut samplers = Samplers { len: steps.len(), ..Samplers::DEFAULT };
                samplers.steps[..steps.len()].copy_from_slice(steps);
                Ok(samplers)
            }
        }
    }

    /// The steps, in their order.
    pub fn steps(&self) -> &[Sampler] {
        &self.steps[..self.len]
    }

    /// Whether this step is taken.
    pub fn contains(&self, step: Sampler) -> bool {
        self.steps().contains(&step)
    }
}

impl Default for Samplers {
    fn default() -> Samplers {
        Samplers::DEFAULT
    }
}

impl fmt::Debug for Samplers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Samplers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.steps().iter().enumerate() {
            let separator = if at == 0 { "" } else { ";" };
            write!(f, "{separator}{}", step.name())?;
        }
        Ok(())
    }
}

/// What is wrong with an order of samplers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplersError {
    /// No such step.
    #[error("no sampler {0:?}: there are {all}", all = Samplers::DEFAULT)]
    Unknown(String),
    /// A step that is there twice.
    #[error("{0} is there more than once")]
    Twice(&'static str),
}

impl FromStr for Samplers {
    type Err = SamplersError;

    /// Names with semicolons between. Dashes are taken for underscores, and the other names that llama.cpp takes.
    fn from_str(text: &str) -> Result<Samplers, SamplersError> {
        let step = |given: &str| {
            let name = given.trim().replace('-', "_");
            let name = match &name[..] {
                "typ" | "typical" | "typical_p" => "typ_p",
                "nucleus" => "top_p",
                "temp" => "temperature",
                name => name,
            };
            let found = Samplers::DEFAULT.steps.into_iter().find(|step| step.name() == name);
            found.ok_or_else(|| SamplersError::Unknown(given.to_owned()))
        };
        let steps = text.split(';').map(step).collect::<Result<Vec<_>, _>>()?;
        Samplers::new(&steps).map_err(|step| SamplersError::Twice(step.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_its_names() {
        let all = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
        assert_eq!(Samplers::DEFAULT.to_string(), all);
        assert_eq!(all.parse(), Ok(Samplers::DEFAULT));
        let few: Samplers = "temp; min-p;typical".parse().unwrap();
        assert_eq!(few.to_string(), "temperature;min_p;typ_p");
        assert_eq!(few.to_string().parse(), Ok(few));
        assert!(few.contains(Sampler::MinP) && !few.contains(Sampler::TopK));
        // Whatever stood there before.
        assert_eq!(Samplers::new(few.steps()), Ok(few));
        assert_ne!(few, Samplers::DEFAULT);
    }

    #[test]
    fn what_is_not_known_or_there_twice_is_named() {
        let error = |text: &str| text.parse::<Samplers>().unwrap_err().to_string();
        assert!(error("top_k;tfs_z").starts_with("no sampler \"tfs_z\": there are penalties;dry;"));
        assert!(error("").starts_with("no sampler \"\""));
        assert!(error("top_k;").starts_with("no sampler \"\""));
        assert_eq!(error("top_k;temp;top-k"), "top_k is there more than once");
        assert_eq!(Samplers::new(&[Sampler::Dry; 12]), Err(Sampler::Dry));
    }
}

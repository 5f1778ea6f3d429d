//! Numerics profiles.

use std::fmt;
use std::str::FromStr;

/// How exact products are. The profiles are specified in the documentation of the crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numerics {
    /// The same bits on every level, for any number of threads and any grouping of tokens.
    #[default]
    Exact,
    /// Faster forms where the level has some.
    Fast,
}

impl Numerics {
    /// All profiles.
    pub const ALL: [Numerics; 2] = [Numerics::Exact, Numerics::Fast];

    /// The profile's name, as `--numerics` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Numerics::Exact => "exact",
            Numerics::Fast => "fast",
        }
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no [`Numerics`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown numerics profile `{0}`; known: exact, fast")]
pub struct UnknownNumerics(pub String);

impl FromStr for Numerics {
    type Err = UnknownNumerics;

    fn from_str(name: &str) -> Result<Numerics, UnknownNumerics> {
        Numerics::ALL.into_iter().find(|n| n.name() == name).ok_or_else(|| UnknownNumerics(name.to_owned()))
    }
}

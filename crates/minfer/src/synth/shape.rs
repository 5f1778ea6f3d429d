//! Shapes of known models: every number that a synthetic file needs, as the models' own `config.json` has them.

use serde::Deserialize;

/// Family of a shape: which metadata keys and tensors its file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// llama: no biases, adjacent rope.
    Llama,
    /// qwen2: biases on q, k and v.
    Qwen2,
    /// gemma3: norms after stages too and on q and k, sliding layers.
    Gemma3,
}

impl Family {
    /// Value of `general.architecture`.
    pub fn architecture(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Gemma3 => "gemma3",
        }
    }
}

/// Dimensions of a model. A JSON file for `minfer synth` has these fields.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// `general.name`.
    pub name: String,
    /// Metadata keys and tensors.
    pub family: Family,
    /// Layers.
    pub n_layer: u32,
    /// Width of the residual stream.
    pub d_model: u32,
    /// Width of the feed-forward stage.
    pub d_ff: u32,
    /// Query heads.
    pub n_head: u32,
    /// Key/value heads.
    pub n_head_kv: u32,
    /// Channels per head.
    pub head_dim: u32,
    /// Tokens of the vocabulary.
    pub n_vocab: u32,
    /// Longest context.
    pub n_ctx: u32,
    /// Base of the rotary embedding.
    pub rope_base: f32,
    /// Epsilon of the RMS norms.
    #[serde(default = "default_eps")]
    pub rms_eps: f32,
    /// Whether the embedding table is the output matrix too.
    #[serde(default)]
    pub tied: bool,
    /// Factor of llama 3's rope scaling (over an original context of 8,192); adds `rope_freqs.weight`.
    #[serde(default)]
    pub llama3_factor: Option<f32>,
    /// Positions that a sliding layer sees: gemma3 only.
    #[serde(default)]
    pub window: Option<u32>,
}

fn default_eps() -> f32 {
    1e-5
}

/// One line of the table: name, family, layers, widths (model, ff), heads (q, kv, dim), vocabulary, context,
/// rope base, eps, tied, llama-3 factor, window.
type Row =
    (&'static str, Family, u32, [u32; 2], [u32; 3], u32, u32, f32, f32, bool, Option<f32>, Option<u32>);

#[rustfmt::skip]
const KNOWN: &[Row] = &[
    ("smollm2-135m",   Family::Llama, 30, [576, 1536],   [9, 3, 64],    49152,  8192,   100e3, 1e-5, true,  None, None),
    ("smollm2-360m",   Family::Llama, 32, [960, 2560],   [15, 5, 64],   49152,  8192,   100e3, 1e-5, true,  None, None),
    ("smollm2-1.7b",   Family::Llama, 24, [2048, 8192],  [32, 32, 64],  49152,  8192,   130e3, 1e-5, true,  None, None),
    ("tinyllama-1.1b", Family::Llama, 22, [2048, 5632],  [32, 4, 64],   32000,  2048,   10e3,  1e-5, false, None, None),
    ("llama-2-7b",     Family::Llama, 32, [4096, 11008], [32, 32, 128], 32000,  4096,   10e3,  1e-5, false, None, None),
    ("llama-3-8b",     Family::Llama, 32, [4096, 14336], [32, 8, 128],  128256, 8192,   500e3, 1e-5, false, None, None),
    ("llama-3.1-8b",   Family::Llama, 32, [4096, 14336], [32, 8, 128],  128256, 131072, 500e3, 1e-5, false, Some(8.0), None),
    ("llama-3.1-70b",  Family::Llama, 80, [8192, 28672], [64, 8, 128],  128256, 131072, 500e3, 1e-5, false, Some(8.0), None),
    ("llama-3.2-1b",   Family::Llama, 16, [2048, 8192],  [32, 8, 64],   128256, 131072, 500e3, 1e-5, true,  Some(32.0), None),
    ("llama-3.2-3b",   Family::Llama, 28, [3072, 8192],  [24, 8, 128],  128256, 131072, 500e3, 1e-5, true,  Some(32.0), None),
    ("mistral-7b",     Family::Llama, 32, [4096, 14336], [32, 8, 128],  32768,  32768,  1e6,   1e-5, false, None, None),
    ("qwen2.5-0.5b",   Family::Qwen2, 24, [896, 4864],   [14, 2, 64],   151936, 32768,  1e6,   1e-6, true,  None, None),
    ("qwen2.5-1.5b",   Family::Qwen2, 28, [1536, 8960],  [12, 2, 128],  151936, 32768,  1e6,   1e-6, true,  None, None),
    ("qwen2.5-3b",     Family::Qwen2, 36, [2048, 11008], [16, 2, 128],  151936, 32768,  1e6,   1e-6, true,  None, None),
    ("qwen2.5-7b",     Family::Qwen2, 28, [3584, 18944], [28, 4, 128],  152064, 32768,  1e6,   1e-6, false, None, None),
    ("qwen2.5-14b",    Family::Qwen2, 48, [5120, 13824], [40, 8, 128],  152064, 32768,  1e6,   1e-6, false, None, None),
    ("qwen2.5-32b",    Family::Qwen2, 64, [5120, 27648], [40, 8, 128],  152064, 32768,  1e6,   1e-6, false, None, None),
    ("gemma-3-270m",   Family::Gemma3, 18, [640, 2048],  [4, 1, 256],   262144, 32768,  1e6,   1e-6, true,  None, Some(512)),
    ("gemma-3-1b",     Family::Gemma3, 26, [1152, 6912], [4, 1, 256],   262144, 32768,  1e6,   1e-6, true,  None, Some(512)),
];

impl Shape {
    /// Names of the known shapes.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|row| row.0)
    }

    /// The shape of that name.
    pub fn known(name: &str) -> Option<Shape> {
        let &(name, family, n_layer, [d_model, d_ff], [n_head, n_head_kv, head_dim], n_vocab, n_ctx, ..) =
            KNOWN.iter().find(|row| row.0 == name)?;
        let &(.., rope_base, rms_eps, tied, llama3_factor, window) =
            KNOWN.iter().find(|row| row.0 == name)?;
        Some(Shape {
            name: name.to_owned(),
            family,
            n_layer,
            d_model,
            d_ff,
            n_head,
            n_head_kv,
            head_dim,
            n_vocab,
            n_ctx,
            rope_base,
            rms_eps,
            tied,
            llama3_factor,
            window,
        })
    }

    /// What is wrong with the numbers, if anything: a file is only written for a shape that can run.
    pub fn problem(&self) -> Option<String> {
        let sizes = [
            ("n_layer", self.n_layer, 1, 1 << 10),
            ("d_model", self.d_model, 32, 1 << 17),
            ("d_ff", self.d_ff, 32, 1 << 19),
            ("n_head", self.n_head, 1, 1 << 10),
            ("n_head_kv", self.n_head_kv, 1, 1 << 10),
            ("head_dim", self.head_dim, 2, 1 << 10),
            ("n_vocab", self.n_vocab, 512, 1 << 22),
            ("n_ctx", self.n_ctx, 1, 1 << 26),
        ];
        if let Some((name, value, low, high)) =
            sizes.into_iter().find(|(_, value, low, high)| value < low || value > high)
        {
            return Some(format!("{name} is {value}: expected {low} to {high}"));
        }
        if !self.n_head.is_multiple_of(self.n_head_kv) {
            return Some(format!("n_head {} is not a multiple of n_head_kv {}", self.n_head, self.n_head_kv));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Some(format!("head_dim {} is odd", self.head_dim));
        }
        if !(self.rope_base > 1.0 && self.rope_base.is_finite()) {
            return Some(format!("rope_base is {}: expected a number above 1", self.rope_base));
        }
        if !(self.rms_eps >= 0.0 && self.rms_eps.is_finite()) {
            return Some(format!("rms_eps is {}: expected a number of at least 0", self.rms_eps));
        }
        if self.llama3_factor.is_some_and(|factor| !(factor > 0.0 && factor.is_finite())) {
            return Some("llama3_factor is no number above 0".to_owned());
        }
        match (self.family, self.window) {
            (Family::Gemma3, None | Some(0)) => {
                return Some("window is absent or 0: gemma3 has one".to_owned());
            }
            (Family::Llama | Family::Qwen2, Some(_)) => {
                return Some(format!("a window is not for {}", self.family.architecture()));
            }
            _ => {}
        }
        None
    }

    /// Values of `rope_freqs.weight` (`[head_dim / 2]`): the divisor of each pair's frequency by llama 3's rule, which
    /// leaves wavelengths below 8192/4 alone, divides those above 8192/1 by the factor, and blends between.
    pub fn rope_divisors(&self) -> Option<Vec<f32>> {
        let factor = f64::from(self.llama3_factor?);
        let (original, low, high) = (8192.0, 1.0, 4.0);
        let divisor = |pair: u32| {
            let exponent = f64::from(2 * pair) / f64::from(self.head_dim);
            let wavelength = 2.0 * std::f64::consts::PI * f64::from(self.rope_base).powf(exponent);
            if wavelength < original / high {
                1.0
            } else if wavelength > original / low {
                factor
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        };
        Some((0..self.head_dim / 2).map(|pair| divisor(pair) as f32).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_shapes_are_sound_and_have_the_published_parameter_counts() {
        for name in Shape::names() {
            let shape = Shape::known(name).unwrap();
            assert_eq!(shape.problem(), None, "{name}");
        }
        // In millions, from the model cards.
        for (name, millions) in [
            ("smollm2-135m", 134.515),
            ("llama-3.2-1b", 1235.814),
            ("llama-3.1-8b", 8030.261),
            ("qwen2.5-1.5b", 1543.714),
            ("qwen2.5-7b", 7615.617),
            ("tinyllama-1.1b", 1100.048),
            ("gemma-3-270m", 268.098),
            ("gemma-3-1b", 999.886),
        ] {
            let s = Shape::known(name).unwrap();
            let (q, kv) = (u64::from(s.n_head * s.head_dim), u64::from(s.n_head_kv * s.head_dim));
            let (d, ff) = (u64::from(s.d_model), u64::from(s.d_ff));
            let bias = if s.family == Family::Qwen2 { q + 2 * kv } else { 0 };
            let norms = if s.family == Family::Gemma3 { 4 * d + 2 * u64::from(s.head_dim) } else { 2 * d };
            let layer = d * (2 * q + 2 * kv) + bias + 3 * d * ff + norms;
            let tables = if s.tied { 1 } else { 2 };
            let total = u64::from(s.n_layer) * layer + tables * u64::from(s.n_vocab) * d + d;
            assert!((total as f64 / 1e6 - millions).abs() < 0.01, "{name}: {total}");
        }
    }

    #[test]
    fn rope_divisors_rise_from_one_to_the_factor() {
        let d = Shape::known("llama-3.2-1b").unwrap().rope_divisors().unwrap();
        assert_eq!((d.len(), d[0], d[31]), (32, 1.0, 32.0));
        assert!(d.windows(2).all(|w| w[0] <= w[1]));
        assert_eq!(Shape::known("qwen2.5-7b").unwrap().rope_divisors(), None);
    }

    #[test]
    fn a_shape_that_cannot_run_is_refused() {
        let mut shape = Shape::known("smollm2-135m").unwrap();
        shape.n_head_kv = 2;
        assert!(shape.problem().unwrap().contains("n_head 9"));
        shape.n_head_kv = 0;
        assert!(shape.problem().unwrap().contains("n_head_kv is 0"));
        for (name, window) in [("gemma-3-270m", None), ("gemma-3-270m", Some(0)), ("llama-3.2-1b", Some(512))]
        {
            let shape = Shape { window, ..Shape::known(name).unwrap() };
            assert!(shape.problem().unwrap().contains("window"), "{name} {window:?}");
        }
        let json = r#"{"name":"x","family":"llama","n_layer":1,"d_model":64,"d_ff":64,"n_head":1,"n_head_kv":1,
            "head_dim":64,"n_vocab":512,"n_ctx":128,"rope_base":10000}"#;
        let shape: Shape = serde_json::from_str(json).unwrap();
        assert_eq!((shape.rms_eps, shape.problem()), (1e-5, None));
        assert!(serde_json::from_str::<Shape>(&json.replace("n_ctx", "ctx")).is_err());
    }
}

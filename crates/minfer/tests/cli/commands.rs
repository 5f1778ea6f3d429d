//! Each command on a small synthetic model.

use serde_json::Value;

use super::*;

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("valid JSON")
}

#[test]
fn run_streams_text_and_sums_up_on_stderr() {
    let args = ["run", "-m", tiny_model(), "--temp", "0", "-n", "8", "hello"];
    let output = run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).ends_with('\n'));
    let summary = stderr(&output);
    assert!(summary.contains("generated 8 tokens") && summary.contains("tok/s") && summary.contains("load"));
    assert!(!summary.contains('\u{1b}'), "colour without a terminal: {summary:?}");
    assert_eq!(stdout(&run(&args)), stdout(&output), "greedy text repeats");
    let seeded = ["run", "-m", tiny_model(), "--temp", "1.5", "--seed", "3", "-n", "8", "hello"];
    assert_eq!(stdout(&run(&seeded)), stdout(&run(&seeded)), "seeded text repeats");
    let threads =
        ["run", "-m", tiny_model(), "--temp", "0", "-n", "8", "-t", "1", "--isa", "scalar", "hello"];
    assert_eq!(stdout(&run(&threads)), stdout(&output), "text does not depend on threads or instruction set");
}

#[test]
fn run_reads_a_prompt_from_stdin_and_ends_at_a_stop_string() {
    let args = ["run", "-m", tiny_model(), "--temp", "0", "-n", "8"];
    let from_stdin = run_with_input(&args, b"hello\n");
    let from_argument = run(&[&args[..], &["hello"]].concat());
    assert_eq!(stdout(&from_stdin), stdout(&from_argument));
    let text = stdout(&from_argument);
    let stop: String = text.trim_end().chars().skip(2).take(2).collect();
    let stopped = stdout(&run(&[&args[..], &["--stop", &stop, "hello"]].concat()));
    assert_eq!(stopped.trim_end_matches('\n'), text.split(&stop).next().unwrap_or_default());
    check_failure(&run_with_input(&args, b"\n"), 2, "empty stdin");
    check_failure(&run_with_input(&args, b"\xff\xfe"), 1, "binary stdin");
}

#[test]
fn run_says_when_the_context_is_full() {
    let output = run(&["run", "-m", tiny_model(), "--temp", "0", "-c", "64", "--raw", "hello"]);
    let text = stderr(&output);
    // A model of noise may stop by chance; it does not here, with this seed.
    assert!(output.status.success() && text.contains("context of 64 tokens is full"), "{text}");
}

#[test]
fn bad_sampling_values_fail_with_their_name() {
    // Wrong usage, which is said before a model is looked for.
    for (flag, value, what) in [
        ("--top-p", "1.5", "top_p is 1.5"),
        ("--temp", "-1", "temperature is -1"),
        ("--min-p", "-0.5", "min_p is -0.5"),
    ] {
        let text = fails(&["run", "-m", "/no/such/file", flag, value, "x"], 2);
        assert!(text.contains(what), "{text}");
    }
    let text = fails(&["run", "-m", tiny_model(), "-n", "-1", "x"], 2);
    assert!(text.contains("for no limit, leave it out"), "{text}");
}

#[test]
fn bench_of_many_sequences_has_a_row_for_each_number_of_them() {
    let args =
        ["bench", "-m", tiny_model(), "-p", "9", "-n", "3", "-npl", "1,5,40", "-r", "1", "-o", "jsonl"];
    let rows: Vec<Value> = succeeds(&args).lines().map(json).collect();
    let of = |name: &str| rows.iter().map(|row| row[name].as_u64()).collect::<Vec<_>>();
    assert_eq!(of("pl"), [Some(1), Some(5), Some(40)]);
    assert_eq!(of("n_kv"), [Some(12), Some(60), Some(480)]);
    let text = fails(&["bench", "-m", tiny_model(), "-npl", "2", "-d", "5"], 2);
    assert!(text.contains("--npl"), "{text}");
}

#[test]
fn tokens_round_trip_byte_for_byte() {
    for text in ["Hello, world\n", "  two  spaces ", "Grüße 世界 🌍\t", "<|im_start|>user"] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("text");
        std::fs::write(&file, text).expect("a temporary file");
        let path = file.to_str().expect("UTF-8");
        for special in [&[][..], &["--no-special"]] {
            let tokenize = [&["tokenize", "-m", tiny_model(), "-f", path], special].concat();
            let ids = succeeds(&tokenize);
            assert_eq!(ids.lines().count(), 1);
            let parsed = json(&ids);
            assert!(parsed.as_array().is_some_and(|a| !a.is_empty()));
            let detokenize = [&["detokenize", "-m", tiny_model(), ids.trim_end()], special].concat();
            assert_eq!(succeeds(&detokenize), text);
            let piped =
                run_with_input(&[&["detokenize", "-m", tiny_model()], special].concat(), ids.as_bytes());
            assert_eq!(stdout(&piped), text);
        }
    }
    let one = json(&succeeds(&["tokenize", "-m", tiny_model(), "<|im_start|>"]));
    assert_eq!(one.as_array().map(Vec::len), Some(1));
    let many = json(&succeeds(&["tokenize", "-m", tiny_model(), "--no-special", "<|im_start|>"]));
    assert!(many.as_array().is_some_and(|a| a.len() > 1));
    let pieces = succeeds(&["tokenize", "-m", tiny_model(), "--pieces", "a b"]);
    assert!(pieces.lines().any(|l| l.ends_with("\t\"a\"")), "{pieces}");
    fails(&["detokenize", "-m", tiny_model(), "[99999999]"], 1);
    fails(&["detokenize", "-m", tiny_model(), "abc"], 1);
}

#[test]
fn template_needs_no_model_when_it_is_given() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("a temporary file");
        path.to_str().expect("UTF-8").to_owned()
    };
    let template = write(
        "t.jinja",
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}\
         {% if add_generation_prompt %}>{% endif %}{{ strftime_now('%Y') }}{{ extra }}",
    );
    let messages = write(
        "m.json",
        r#"{"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"extra": "!"}}"#,
    );
    let base = ["template", "--template", &template, "--messages", &messages, "--bos", "<s>"];
    let now = ["--now", "2031-05-06T07:08:09Z"];
    assert_eq!(succeeds(&[&base[..], &now].concat()), "<s>[user:hi]>2031!");
    let plain = [&base[..], &now, &["--no-generation-prompt"]].concat();
    assert_eq!(succeeds(&plain), "<s>[user:hi]2031!");
    let of_model = succeeds(&["template", "-m", tiny_model(), "--messages", &messages]);
    assert_eq!(of_model, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    let broken = write("broken.jinja", "{% for %}");
    fails(&["template", "--template", &broken, "--messages", &messages], 1);
    let wrong = write("wrong.json", r#"{"message": []}"#);
    fails(&["template", "--template", &template, "--messages", &wrong], 1);
}

#[test]
fn inspect_tells_what_a_file_is() {
    let report = json(&succeeds(&["inspect", tiny_model(), "--json", "--tensors", "--metadata"]));
    assert_eq!(report["file"]["architecture"], "llama");
    assert_eq!(report["runs"], true);
    assert_eq!(report["vocabulary"], 1024);
    assert_eq!(report["metadata"]["llama.block_count"], 2);
    // Two layers with two key/value heads of 64 channels: K and V in 2 bytes.
    assert_eq!(report["memory"]["kv_per_token"], 2 * 2 * 2 * 64 * 2);
    let tensors = report["tensors"].as_array().expect("an array");
    assert_eq!(tensors.len() as u64, report["file"]["tensors"].as_u64().expect("a number"));
    let bytes: u64 = tensors.iter().filter_map(|t| t["bytes"].as_u64()).sum();
    assert_eq!(Some(bytes), report["file"]["tensor_bytes"].as_u64());
    let text = succeeds(&["inspect", tiny_model(), "--tensors"]);
    assert!(text.contains("runs here     yes") && text.contains("blk.1.ffn_down.weight"), "{text}");
    // Another family, by its name.
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("qwen.gguf");
    let path = path.to_str().expect("UTF-8");
    succeeds(&["synth", "qwen2.5-0.5b", path, "--type", "q4_0"]);
    let text = succeeds(&["inspect", path]);
    assert!(
        text.contains("494.03 M") && text.contains("qwen2") && text.contains("runs here     yes"),
        "{text}"
    );
}

#[test]
fn doctor_tells_what_would_be_used() {
    let text = succeeds(&["doctor"]);
    for word in ["processor", "threads", "instructions", "memory", "GPU", "kernels", "cache", "scalar"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let report = json(&succeeds(&["doctor", "--json"]));
    assert!(report["kernels"].as_array().is_some_and(|k| !k.is_empty()));
    assert!(report["cores"].as_u64().is_some_and(|n| n > 0));
    assert!(report["threads"].as_u64().is_some_and(|n| n > 0 && Some(n) <= report["cores"].as_u64()));
}

/// llama-bench's fields, in its order.
const FIELDS: &str = "build_commit build_number cpu_info gpu_info backends model_filename model_type model_size \
    model_n_params n_batch n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers n_cpu_moe \
    split_mode main_gpu no_kv_offload flash_attn devices tensor_split tensor_buft_overrides load_mode lazy_mode \
    embeddings no_op_offload no_host repack fit_target fit_min_ctx n_prompt n_gen n_depth test_time avg_ns stddev_ns \
    avg_ts stddev_ts";

#[test]
fn bench_has_llama_benchs_tests_and_fields() {
    let args = "-p 16,24 -n 4 -pg 8,2 -d 0,8 -r 2 -b 16 -ub 8 -t 1";
    let args: Vec<&str> =
        ["bench", "-m", tiny_model(), "-o", "json"].into_iter().chain(args.split(' ')).collect();
    let rows = json(&succeeds(&args));
    let rows = rows.as_array().expect("an array");
    let tests: Vec<[u64; 3]> = rows
        .iter()
        .map(|r| ["n_prompt", "n_gen", "n_depth"].map(|f| r[f].as_u64().expect("a number")))
        .collect();
    let at = |d| [[16, 0, d], [24, 0, d], [0, 4, d], [8, 2, d]];
    assert_eq!(tests, [at(0), at(8)].concat());
    for row in rows {
        let keys: Vec<&String> = row.as_object().expect("an object").keys().collect();
        let expected: Vec<&str> = FIELDS.split_whitespace().collect();
        assert_eq!(keys[..expected.len()], expected);
        assert_eq!(row["samples_ns"].as_array().map(Vec::len), Some(2));
        assert!(row["avg_ts"].as_f64().is_some_and(|v| v > 0.0));
        let kernels = row["kernels"].as_array().expect("an array");
        assert!(
            kernels.iter().any(|k| k.as_str().is_some_and(|k| k.starts_with("matmul_q6_k_"))),
            "{kernels:?}"
        );
        assert_eq!(
            (&row["n_batch"], &row["n_ubatch"], &row["n_threads"]),
            (&16.into(), &8.into(), &1.into())
        );
    }
    let table = succeeds(&["bench", "-m", tiny_model(), "-p", "8", "-n", "2", "-r", "1"]);
    assert!(table.starts_with("| model ") && table.contains(" pp8 |") && table.contains(" tg2 |"), "{table}");
    let table = succeeds(&["bench", "-m", tiny_model(), "-p", "8", "-n", "2", "-r", "1", "--greedy"]);
    assert!(table.contains(" pp8 |") && table.contains(" tg2 greedy |"), "{table}");
}

#[test]
fn perplexity_is_compared_with_saved_logits() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (text, base) = (path("text"), path("base"));
    std::fs::write(&text, "The quick brown fox jumps over the lazy dog. ".repeat(10))
        .expect("a temporary file");
    let common = ["perplexity", "-m", tiny_model(), "--json"];
    let first = json(&succeeds(&[&common[..], &["-f", &text, "-c", "64", "--kl-save", &base]].concat()));
    let ppl = first["perplexity"].as_f64().expect("a number");
    assert!(ppl.is_finite() && ppl > 1.0);
    let second = json(&succeeds(&[&common[..], &["--kl-base", &base]].concat()));
    assert_eq!(second["perplexity"], first["perplexity"], "the same tokens in the same windows");
    assert!(second["mean_kld"].as_f64().is_some_and(|kl| kl.abs() < 1e-6), "{second}");
    assert!(second["same_top"].as_f64().is_some_and(|same| same > 0.99));
    let smaller =
        json(&succeeds(&[&common[..], &["-f", &text, "-c", "64", "--ub", "7", "-t", "1"]].concat()));
    assert_eq!(smaller["perplexity"], first["perplexity"], "steps and threads do not matter");
    fails(&["perplexity", "-m", tiny_model(), "-f", &text, "-c", "200000"], 1);
    std::fs::write(&text, "too short").expect("a temporary file");
    let message = fails(&["perplexity", "-m", tiny_model(), "-f", &text, "-c", "64"], 1);
    assert!(message.contains("at least 64"), "{message}");
    fails(&["perplexity", "-m", tiny_model(), "--kl-base", &text], 1);
}

#[test]
fn keys_and_values_are_cached_in_types_of_their_own() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (keys, values) in
        [("q8_0", "q8_0"), ("q8_0", "f32"), ("bf16", "q8_0"), ("fp8", "fp8"), ("fp8", "bf16")]
    {
        let args = ["bench", "-m", tiny_model(), "-p", "70", "-n", "2", "-r", "1", "-o", "jsonl"];
        let text = succeeds(&[&args[..], &["--ctk", keys, "--ctv", values]].concat());
        assert!(text.contains(&format!(r#""type_k":"{keys}","type_v":"{values}""#)), "{text}");
    }
    let shape = dir.path().join("shape.json");
    let json = serde_json::json!({"name": "narrow", "family": "llama", "n_layer": 1, "d_model": 256, "d_ff": 256,
        "n_head": 2, "n_head_kv": 2, "head_dim": 48, "n_vocab": 512, "n_ctx": 128, "rope_base": 10000, "tied": true});
    std::fs::write(&shape, json.to_string()).expect("the shape is written");
    let model = dir.path().join("narrow.gguf");
    let (shape, model) = (shape.to_str().expect("UTF-8"), model.to_str().expect("UTF-8"));
    succeeds(&["synth", shape, model, "--type", "f16"]);
    succeeds(&["bench", "-m", model, "-p", "8", "-n", "0", "-r", "1"]);
    let text = fails(&["bench", "-m", model, "-p", "8", "-n", "0", "-r", "1", "--ctv", "q8_0"], 1);
    assert!(text.contains("q8_0") && text.contains("32") && text.contains("heads of 48"), "{text}");
}

#[test]
fn synth_is_repeatable_and_leaves_nothing_behind_when_it_fails() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("no-such-folder").join("out.gguf");
    fails(&["synth", "smollm2-135m", path.to_str().expect("UTF-8")], 1);
    let shape = dir.path().join("shape.json");
    std::fs::write(&shape, r#"{"name": "x", "family": "llama"}"#).expect("a temporary file");
    let out = dir.path().join("out.gguf");
    let text = fails(&["synth", shape.to_str().expect("UTF-8"), out.to_str().expect("UTF-8")], 1);
    assert!(text.contains("n_layer") && !out.exists(), "{text}");
    let json = serde_json::json!({"name": "x", "family": "llama", "n_layer": 1, "d_model": 64, "d_ff": 64,
        "n_head": 1, "n_head_kv": 1, "head_dim": 64, "n_vocab": 512, "n_ctx": 128, "rope_base": 0});
    std::fs::write(&shape, json.to_string()).expect("a temporary file");
    let text = fails(&["synth", shape.to_str().expect("UTF-8"), out.to_str().expect("UTF-8")], 1);
    assert!(text.contains("rope_base is 0") && !out.exists(), "{text}");
}

/// A socket stands for what is not a regular file; a link's target is what is written.
#[cfg(unix)]
#[test]
fn only_regular_files_are_replaced_and_nothing_that_is_read() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let shape = dir.path().join("shape.json");
    let json = serde_json::json!({"name": "small", "family": "llama", "n_layer": 1, "d_model": 256, "d_ff": 256,
        "n_head": 2, "n_head_kv": 2, "head_dim": 64, "n_vocab": 512, "n_ctx": 128, "rope_base": 10000, "tied": true});
    std::fs::write(&shape, json.to_string()).expect("the shape is written");
    let shape = shape.to_str().expect("UTF-8");
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let text = fails(&["synth", shape, socket.to_str().expect("UTF-8")], 1);
    assert!(text.contains("not a regular file"), "{text}");
    let (target, link) = (dir.path().join("target.gguf"), dir.path().join("link.gguf"));
    std::fs::write(&target, "old").expect("a file");
    std::os::unix::fs::symlink(&target, &link).expect("a link");
    succeeds(&["synth", shape, link.to_str().expect("UTF-8")]);
    assert!(link.is_symlink() && target.metadata().expect("a file").len() > 1000);

    let model = dir.path().join("model.gguf");
    std::fs::copy(tiny_model(), &model).expect("a copy");
    let model = model.to_str().expect("UTF-8");
    let text = dir.path().join("text");
    std::fs::write(&text, "words of a text ".repeat(40)).expect("a file");
    let text = text.to_str().expect("UTF-8");
    let before = [model, text].map(|path| std::fs::read(path).expect("a file"));
    for save in [model, text] {
        let why = fails(&["perplexity", "-m", model, "-f", text, "-c", "64", "--kl-save", save], 2);
        assert!(why.contains("a file that is read"), "{why}");
    }
    assert!(before == [model, text].map(|path| std::fs::read(path).expect("a file")));
}

#[test]
fn absurd_numbers_are_refused_by_bench() {
    let huge = usize::MAX.to_string();
    let bench = ["bench", "-m", tiny_model(), "-p", "4", "-n", "2"];
    let text = fails(&[&bench[..], &["-r", "1", "-d", &huge]].concat(), 1);
    assert!(text.contains("context"), "{text}");
    let pair = format!("{huge},5");
    fails(&["bench", "-m", tiny_model(), "-p", "0", "-n", "0", "--pg", &pair, "-r", "1"], 1);
}

#[test]
fn run_prints_log_probabilities_of_every_token() {
    let args = ["run", "-m", tiny_model(), "--temp", "0", "-n", "6"];
    let text = succeeds(&[&args[..], &["hello"]].concat());
    let lines = succeeds(&[&args[..], &["--logprobs", "3", "hello"]].concat());
    let tokens: Vec<Value> = lines.lines().map(json).collect();
    assert_eq!(tokens.len(), 6);
    let bytes = |token: &Value| -> Vec<u8> { serde_json::from_value(token["bytes"].clone()).expect("bytes") };
    let joined: Vec<u8> = tokens.iter().flat_map(bytes).collect();
    assert_eq!(String::from_utf8_lossy(&joined), text.trim_end_matches('\n'));
    for token in &tokens {
        let top = token["top"].as_array().expect("an array");
        assert_eq!(top.len(), 3);
        assert_eq!((&top[0]["id"], &top[0]["logprob"]), (&token["id"], &token["logprob"]), "greedy");
        let values: Vec<f64> = top.iter().filter_map(|t| t["logprob"].as_f64()).collect();
        assert!(values.len() == 3 && values.is_sorted_by(|a, b| a >= b) && values[0] <= 0.0, "{token}");
    }
    // A bias beyond all logits decides; log-probabilities are of the model's own logits.
    let second = tokens[0]["top"][1]["id"].as_u64().expect("an id");
    let bias = format!("{second}+1e9");
    let biased = [&args[..], &["--logprobs", "1", "-l", &bias, "hello"]].concat();
    let first = json(succeeds(&biased).lines().next().expect("a line"));
    assert_eq!((&first["id"], &first["logprob"]), (&second.into(), &tokens[0]["top"][1]["logprob"]));
    let forbidden = format!("{}-inf", tokens[0]["id"]);
    let without = [&args[..], &["--logprobs", "1", "--logit-bias", &forbidden, "hello"]].concat();
    assert_eq!(json(succeeds(&without).lines().next().expect("a line"))["id"], second);
    assert!(
        fails(&["run", "-m", tiny_model(), "-l", "1024+1", "x"], 1).contains("logit_bias has token 1024")
    );
    assert!(fails(&["run", "-m", tiny_model(), "--typical", "2", "x"], 2).contains("typical_p is 2"));
    fails(&["run", "-m", tiny_model(), "--logprobs", "21", "x"], 2);
    fails(&["run", "-m", tiny_model(), "-l", "5", "x"], 2);
}

#[test]
fn run_ends_at_the_first_of_several_stop_strings() {
    let args = ["run", "-m", tiny_model(), "--temp", "0", "-n", "8"];
    let text = succeeds(&[&args[..], &["hello"]].concat());
    let piece = |at: usize| text.chars().skip(at).take(2).collect::<String>();
    let (late, early) = (piece(6), piece(2));
    let stopped =
        succeeds(&[&args[..], &["--stop", &late, "--stop", "no such", "--stop", &early, "hello"]].concat());
    let expected = [&late, &early].iter().filter_map(|s| text.find(s.as_str())).min().expect("both occur");
    assert_eq!(stopped.trim_end_matches('\n'), &text[..expected]);
}

#[test]
fn shells_and_man_know_every_command() {
    let help = succeeds(&["--help"]);
    let section = help.split("Commands:").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a list");
    let names: Vec<&str> = section.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 10 && names.contains(&"chat"), "{names:?}");
    let page = succeeds(&["man"]);
    assert!(page.starts_with(".ie") && page.contains(".TH minfer 1"), "{page}");
    for shell in ["bash", "zsh", "fish"] {
        let script = succeeds(&["completions", shell]);
        for name in &names {
            assert!(script.contains(name) && page.contains(name), "{shell}: {name}");
            let own = succeeds(&["man", name]);
            assert!(own.contains(&format!(".TH minfer-{name} 1")) && own.contains("log"), "{own}");
        }
    }
    assert!(fails(&["man", "nothing"], 2).contains("chat"));
    fails(&["completions", "cmd"], 2);
}

#[test]
fn tables_have_a_form_as_json() {
    let pieces = json(&succeeds(&["tokenize", "-m", tiny_model(), "--pieces", "--json", "a"]));
    let plain = json(&succeeds(&["tokenize", "-m", tiny_model(), "--json", "a"]));
    assert_eq!(pieces[0]["id"], plain[0]);
    let bench = ["bench", "-m", tiny_model(), "-p", "4", "-n", "0", "-r", "1", "--json"];
    assert_eq!(json(&succeeds(&bench))[0]["n_prompt"], 4);
    fails(&[&bench[..], &["-o", "csv"]].concat(), 2);
}

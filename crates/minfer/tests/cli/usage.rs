//! Help, versions and wrong usage.

use super::*;

const COMMANDS: [&str; 12] = [
    "run",
    "bench",
    "perplexity",
    "tokenize",
    "detokenize",
    "template",
    "inspect",
    "synth",
    "pull",
    "list",
    "rm",
    "doctor",
];

#[test]
fn every_command_has_help_with_an_example() {
    for command in COMMANDS {
        let output = run(&[command, "--help"]);
        assert!(output.status.success() && output.stderr.is_empty(), "{command}");
        let help = stdout(&output);
        assert!(
            help.contains("Example:\n  minfer ") || help.contains("Example:\n  git "),
            "{command}: {help}"
        );
    }
    let help = succeeds(&["--help"]);
    assert!(COMMANDS.iter().all(|c| help.contains(c)), "{help}");
    assert!(succeeds(&["--version"]).starts_with("minfer 0."));
}

#[test]
fn wrong_usage_exits_with_2() {
    for args in [
        &[][..],
        &["no-such-command"],
        &["run", "--no-such-flag", "x"],
        &["run", "-n", "0", "x"],
        &["run", "-n", "many", "x"],
        &["run", "--temp", "warm", "x"],
        &["run", "--threads", "0", "x"],
        &["run", "--raw", "--system", "s", "x"],
        &["run", "--isa", "mmx", "x"],
        &["bench", "-o", "xml"],
        &["bench", "-p", "0", "-n", "0"],
        &["perplexity"],
        &["inspect"],
        &["synth", "llama-3.2-1b"],
        &["synth", "no-such-shape", "out.gguf"],
        &["synth", "smollm2-135m", "out.gguf", "--type", "q9_k"],
        &["template"],
        &["tokenize", "text", "--file", "also-a-file"],
        &["--log", "a=b=c", "doctor"],
    ] {
        fails(args, 2);
    }
}

#[test]
fn what_is_not_built_is_unknown() {
    for args in [
        #[cfg(not(feature = "cuda"))]
        &["run", "--device", "cuda", "x"][..],
        &["run", "--numerics", "loose", "x"][..],
        &["run", "--ctk", "q4_0", "x"],
        &["quantize"],
        &["convert"],
    ] {
        fails(args, 2);
    }
}

#[test]
fn without_a_prompt_nothing_is_loaded() {
    let text = check_failure(&run(&["run"]), 2, "run");
    assert!(text.contains("stdin"), "{text}");
}

#[test]
fn flags_of_llama_cpp_are_answered() {
    for (args, help) in [
        #[cfg(not(feature = "cuda"))]
        (&["run", "-ngl", "99", "x"][..], "give 0"),
        (&["run", "-fa", "x"][..], "leave it out"),
        (&["run", "--jinja", "x"], "llama.cpp's --jinja: leave it out"),
        (&["run", "-ub", "512", "x"], "only `minfer bench`"),
        (&["run", "--no-mmap", "x"], "files are mapped"),
        (&["run", "--ctx-size", "512", "x"], "-c N"),
        (&["run", "-sys", "s", "x"], "--system"),
        (&["run", "-hf", "model", "x"], "hf:ORG/REPO"),
        (&["run", "-hff", "m.gguf", "x"], "-m hf:ORG/REPO/m.gguf"),
        (&["run", "-md", "m.gguf", "x"], "--draft MODEL"),
        (&["run", "--draft-max", "8", "x"], "--draft-tokens N"),
        (&["bench", "--flash-attn", "1"], "llama.cpp's --flash-attn"),
        (&["run", "--temperature", "1", "x"], "--temp"),
    ] {
        let text = fails(args, 2);
        assert!(text.contains(help), "{args:?}: {text}");
    }
    // What has the same meaning here is taken.
    let flags =
        ["-m", tiny_model(), "-p", "hello", "-n", "2", "-t", "1", "-c", "64", "--temp", "0", "-ngl", "0"];
    let output = run(&[&["run"][..], &flags].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    fails(&["run", "-p", "hello", "twice"], 2);
}

/// Before a model is looked for, which would be an error of another kind.
#[test]
fn constraints_that_cannot_be_honoured_are_wrong_usage() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("the file is written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let (not, cut) = (file("not.json", r#"{"properties": {"a": {"not": {}}}}"#), file("cut.json", "{"));
    let lark = file("g.lark", "start: nowhere");
    let gbnf = file("g.gbnf", "root ::= \"a\" <think>");
    for (args, what) in [
        (&["--json-schema", &not][..], "\"not\" at \"/properties/a\""),
        (&["--json-schema", &cut], "is not JSON"),
        (&["--regex", "("], "unclosed group"),
        (&["--regex", "(?!a)b"], "look-around"),
        (&["--grammar", &lark], "nowhere"),
        (&["--grammar", &gbnf], "tokens (<…>) are not supported"),
        (&["--regex", "a", "--json-object"], "cannot be used with"),
        (&["--constrain-after", "a"], "--regex"),
        (&["--regex", "a", "--constrain-after", ""], "has 0 bytes"),
    ] {
        let text = fails(&[&["run", "-m", "no-such-file", "x"], args].concat(), 2);
        assert!(text.contains(what), "{args:?}: {text}");
    }
    fails(&["run", "-m", "no-such-file", "--grammar", "no-such-grammar", "x"], 1);
}

/// Before a model is looked for.
#[test]
fn samplers_that_there_are_not_are_wrong_usage() {
    for (args, what) in [
        (&["--samplers", "top_k;tfs_z"][..], "no sampler \"tfs_z\": there are penalties;dry;"),
        (&["--samplers", "top_k;temp;top_k"], "top_k is there more than once"),
        (&["--samplers", ""], "no sampler \"\""),
        (&["--mirostat", "1"], "mirostat is 1, must be 0 or 2"),
        (&["--mirostat", "2", "--mirostat-tau", "-1"], "mirostat_tau is -1"),
        (&["--mirostat", "2", "--mirostat-eta", "nan"], "mirostat_eta is NaN"),
    ] {
        let text = fails(&[&["run", "-m", "no-such-file", "x"], args].concat(), 2);
        assert!(text.contains(what), "{args:?}: {text}");
    }
}

/// Before a model is looked for.
#[test]
fn texts_that_cannot_be_banned_are_wrong_usage() {
    let (long, many) = ("x".repeat(257), vec!["--ban=x"; 65]);
    for (args, what) in [
        (&["--ban", ""][..], "--ban: a banned string is empty"),
        (&["--ban", &long], "has 257, at most 256 are possible"),
        (&many, "banned strings has 65, at most 64 are possible"),
    ] {
        let text = fails(&[&["run", "-m", "no-such-file", "x"], args].concat(), 2);
        assert!(text.contains(what), "{args:?}: {text}");
    }
    assert!(succeeds(&["run", "--help"]).contains("byte for byte"));
}

/// Before a model is looked for.
#[test]
fn drafts_that_cannot_be_are_wrong_usage() {
    for (args, what) in [
        (&["--draft", "also-no-file", "--lookup", "3"][..], "--draft and --lookup"),
        (&["--draft-tokens", "3"], "--draft <MODEL>"),
        (&["--draft", "also-no-file", "--draft-tokens", "0"], "1..=15"),
        (&["--draft", "also-no-file", "--draft-tokens", "16"], "1..=15"),
    ] {
        let text = fails(&[&["run", "-m", "no-such-file", "x"], args].concat(), 2);
        assert!(text.contains(what), "{args:?}: {text}");
    }
    let text = fails(&["run", "-m", tiny_model(), "--draft", "no-such-file", "x"], 1);
    assert!(text.contains("draft") && text.contains("no-such-file"), "{text}");
    // A model may draft for itself.
    let output =
        run(&["run", "-m", tiny_model(), "--draft", tiny_model(), "-n", "8", "--temp", "0", "--raw", "a"]);
    assert!(output.status.success() && stderr(&output).contains("guesses"), "{}", stderr(&output));
}

#[test]
fn numbers_that_leave_nothing_to_do_are_refused_in_words() {
    let text = fails(&["perplexity", "-m", tiny_model(), "-f", "x", "-c", "1"], 2);
    assert!(text.contains("too short to score anything"), "{text}");
    let text = fails(&["run", "-m", tiny_model(), "-c", "1", "hello"], 1);
    assert!(text.contains("the context holds 1"), "{text}");
}

/// A script that keeps the help in a file must hear of a full disk.
#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_written_is_a_failure() {
    for args in [&["--help"][..], &["--version"], &["run", "--help"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("the device");
        let output = minfer().args(args).stdout(full).output().expect("the binary runs");
        let text = check_failure(&output, 1, "help");
        assert!(text.contains("No space left"), "{text}");
    }
}

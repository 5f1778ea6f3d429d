//! The two commands of the README, and the others on real models.

use std::process::{Command, Output, Stdio};

use minfer::engine::SamplingParams;
use minfer::{DiskCache, Generate, Llm, Message, Options};

use crate::support::{GEMMA3, SMOLLM2, cache_dir, cores, open};

fn run(args: &[&str]) -> Output {
    // The binary would fetch the models itself; this makes both use the same files.
    open(SMOLLM2);
    open(GEMMA3);
    let output = Command::new(env!("CARGO_BIN_EXE_minfer"))
        .args(args)
        .env("MINFER_CACHE", cache_dir())
        .env_remove("MINFER_LOG")
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {text}");
    output
}

fn stdout(args: &[&str]) -> String {
    String::from_utf8(run(args).stdout).expect("whole characters")
}

#[test]
fn the_default_model_answers() {
    let _cores = cores();
    let args = ["run", "--temp", "0", "-n", "48", "Why is the sky blue?"];
    let answer = stdout(&args);
    let lower = answer.to_lowercase();
    assert!(lower.contains("sky") && (lower.contains("scatter") || lower.contains("light")), "{answer}");
    let threads = ["run", "--temp", "0", "-n", "48", "-t", "1", "Why is the sky blue?"];
    assert_eq!(stdout(&threads), answer, "the text does not depend on threads");
    // The library gives the same text.
    let options = Options::default();
    let llm = Llm::from_gguf(&open(SMOLLM2), &options, &mut |_, _| {}).expect("the model is loaded");
    let greedy = Generate { max_tokens: Some(48), sampling: SamplingParams::greedy(), ..Generate::default() };
    let generation =
        llm.chat(&[Message::user("Why is the sky blue?")], &greedy).expect("the request is taken");
    let text: String = generation.map(|piece| piece.expect("the generation succeeds")).collect();
    assert_eq!(text + "\n", answer);
}

/// With a sliding window (gemma) and without: what an earlier request has computed is taken over, and the text is the same.
#[test]
fn a_prompt_that_begins_like_an_earlier_one_is_taken_over() {
    let _cores = cores();
    for name in [SMOLLM2, GEMMA3] {
        let load =
            || Llm::from_gguf(&open(name), &Options::default(), &mut |_, _| {}).expect("the model is loaded");
        let greedy =
            Generate { max_tokens: Some(24), sampling: SamplingParams::greedy(), ..Generate::default() };
        let answer = |llm: &Llm, tokens: &[u32]| {
            let mut generation = llm.generate(tokens.to_vec(), &greedy).expect("the request is taken");
            let text: String =
                generation.by_ref().map(|piece| piece.expect("the generation succeeds")).collect();
            (text, generation.summary().expect("an end").usage)
        };
        let llm = load();
        let text = llm.text_prompt(&include_str!("text.txt").repeat(2));
        let (first, second) = (&text[..700], [&text[..650], &text[100..130]].concat());
        assert_eq!(answer(&llm, first).1.cached_tokens, 0);
        let (again, usage) = answer(&llm, &second);
        // Ten blocks of 64 are the same.
        assert_eq!((usage.prompt_tokens, usage.cached_tokens), (680, 640), "{name}");
        assert_eq!(again, answer(&load(), &second).0, "{name}");
    }
}

/// Another process, as far as the folder can tell: what one has kept is taken over, what is damaged is computed again, and the text
/// is the same.
#[test]
fn a_prompt_goes_on_from_what_an_earlier_process_kept() {
    let _cores = cores();
    for name in [SMOLLM2, GEMMA3] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let disk = DiskCache { dir: dir.path().to_owned(), bytes: 1 << 30 };
        let options = Options { disk: Some(disk), ..Options::default() };
        let greedy =
            Generate { max_tokens: Some(24), sampling: SamplingParams::greedy(), ..Generate::default() };
        let answer = |options: &Options| {
            let llm = Llm::from_gguf(&open(name), options, &mut |_, _| {}).expect("the model is loaded");
            let tokens = llm.text_prompt(&include_str!("text.txt").repeat(2))[..700].to_vec();
            let mut generation = llm.generate(tokens, &greedy).expect("the request is taken");
            let text: String =
                generation.by_ref().map(|piece| piece.expect("the generation succeeds")).collect();
            (text, generation.summary().expect("an end").usage.cached_tokens)
        };
        let (text, cached) = answer(&Options::default());
        assert_eq!((answer(&options), cached), ((text.clone(), 0), 0), "{name}");
        // Ten blocks of 64.
        assert_eq!(answer(&options), (text.clone(), 640), "{name}");
        for place in 0..3 {
            let files = std::fs::read_dir(dir.path()).expect("a folder");
            for (i, file) in files.map(|file| file.expect("a file").path()).enumerate() {
                let mut bytes = std::fs::read(&file).expect("a file");
                let at = [8, 90, bytes.len() / 3, bytes.len() / 2, bytes.len() - 1][(i + place) % 5];
                bytes[at] ^= 4;
                std::fs::write(&file, bytes).expect("a file");
            }
            // The first one is removed when it is read, others when they are asked for.
            assert_eq!(answer(&options), (text.clone(), 0), "{name}");
        }
    }
}

/// Requests of several threads share the cache of one sequence of full length; what does not fit is set back, and each
/// gets what it gets alone.
#[test]
fn requests_of_several_threads_get_what_they_get_alone() {
    let _cores = cores();
    let mut options = Options::default();
    options.load.context = Some(512);
    let llm = Llm::from_gguf(&open(SMOLLM2), &options, &mut |_, _| {}).expect("the model is loaded");
    let greedy = Generate { max_tokens: Some(96), sampling: SamplingParams::greedy(), ..Generate::default() };
    let topics = ["rain", "bread", "the moon", "bees", "iron", "glass", "chess", "tea"];
    let answer = |topic: &str| -> String {
        let prompt =
            format!("Tell me a long story about {topic}. It should have {topic} in every sentence of it.");
        let generation = llm.chat(&[Message::user(prompt)], &greedy).expect("the request is taken");
        generation.map(|piece| piece.expect("the generation succeeds")).collect()
    };
    let together: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = topics.map(|topic| scope.spawn(move || answer(topic))).into_iter().collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    let alone: Vec<String> = topics.iter().map(|topic| answer(topic)).collect();
    assert_eq!(together, alone);
}

/// Guesses change the speed, not the text, and an answer that repeats its prompt has many that are right.
#[test]
fn guesses_do_not_change_the_text() {
    let _cores = cores();
    let prompt = "one two three four five six seven eight nine ten. ".repeat(2) + "one two three four";
    for (sampling, least) in [(&["--temp", "0"][..], 5), (&["--seed", "5"], 0), (&["--seed", "6"], 0)] {
        let of = |lookup: &str| {
            run(&[&["run", "--raw", "-n", "60", "--lookup", lookup, &prompt], sampling].concat())
        };
        let (plain, guessed) = (of("0"), of("6"));
        assert_eq!(plain.stdout, guessed.stdout);
        let summary = String::from_utf8_lossy(&guessed.stderr).into_owned();
        let right =
            summary.split("guesses ").nth(1).and_then(|text| text.split(' ').next()?.parse::<usize>().ok());
        assert!(right.is_some_and(|right| right >= least), "{summary}");
    }
}

/// Mirostat and orders of one's own are repeatable by a seed, and do what they are for.
#[test]
fn mirostat_and_samplers_are_taken() {
    let _cores = cores();
    let of = |more: &[&str]| {
        stdout(&[&["run", "--raw", "-n", "24", "--seed", "5", "Once upon a time there was"], more].concat())
    };
    let usual = of(&[]);
    let surprising = of(&["--mirostat", "2", "--mirostat-tau", "6", "--temp", "1"]);
    assert_ne!(usual, surprising);
    assert_eq!(surprising, of(&["--mirostat", "2", "--mirostat-ent", "6", "--temp", "1", "--top-k", "1"]));
    // No surprise is the greedy text, from which top-k 1 in any order is no different.
    let greedy = of(&["--temp", "0"]);
    assert_eq!(greedy, of(&["--mirostat", "2", "--mirostat-tau", "0"]));
    assert_eq!(greedy, of(&["--samplers", "top_k", "--top-k", "1"]));
    assert_ne!(greedy, of(&["--samplers", "temperature", "--top-k", "1", "--temp", "3"]));
    assert_eq!(
        usual,
        of(&["--samplers", "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"])
    );
}

/// A repetition goes on without DRY, and with it only past a breaker.
#[test]
fn dry_ends_a_repetition() {
    let _cores = cores();
    let prompt = "The cat sat on the mat. The dog sat on the mat. The bird sat on the";
    let of = |more: &[&str]| {
        stdout(&[&["run", "--raw", "--temp", "0", "-n", "1", prompt], more].concat()).trim().to_owned()
    };
    assert_eq!(of(&[]), "mat");
    assert_ne!(of(&["--dry-multiplier", "30"]), "mat");
    assert_eq!(of(&["--dry-multiplier", "30", "--dry-sequence-breaker", "the"]), "mat");
    assert_eq!(of(&["--dry-multiplier", "30", "--dry-allowed-length", "20"]), "mat");
}

#[test]
fn an_answer_ends_by_itself() {
    let _cores = cores();
    let output = run(&["run", "--temp", "0", "-n", "400", "What is 2 + 2? Answer with the number only."]);
    let summary = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!summary.contains("generated 400 tokens"), "{summary}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("<|im_end|>"));
}

#[test]
fn a_base_model_continues_text_and_says_so() {
    let _cores = cores();
    let source = format!("pip:{GEMMA3}");
    let output = run(&["run", "-m", &source, "--temp", "0", "-n", "8", "The capital of France is"]);
    let note = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(note.contains("no chat template"), "{note}");
    let raw = stdout(&["run", "-m", &source, "--raw", "--temp", "0", "-n", "8", "The capital of France is"]);
    assert_eq!(raw.as_bytes(), output.stdout);
}

#[test]
fn inspect_and_bench_work_on_both() {
    let _cores = cores();
    for name in [SMOLLM2, GEMMA3] {
        let source = format!("pip:{name}");
        assert!(stdout(&["inspect", &source]).contains("runs here     yes"));
        let row = stdout(&["bench", "-m", &source, "-p", "16", "-n", "4", "-r", "1", "-o", "jsonl"]);
        assert_eq!(row.lines().count(), 2, "{row}");
    }
}

/// A model that drafts for itself is nearly always right, however tokens are chosen, and changes no text.
#[test]
fn a_draft_does_not_change_the_text() {
    let _cores = cores();
    let source = format!("pip:{SMOLLM2}");
    let samplings = [
        &["--temp", "0"][..],
        &["--seed", "5"],
        &["--seed", "6", "--temp", "1.3", "--repeat-penalty", "1.2"],
        &["--temp", "0", "--ban", "blue", "--ban", "the s"],
        &["--temp", "0", "--regex", "(The|Because|It)[a-z ,]{40,60}\\."],
    ];
    for sampling in samplings {
        let plain = run(&[&["run", "-n", "40", "Why is the sky blue?"], sampling].concat());
        let drafted = run(&[
            &["run", "-n", "40", "--draft", &source, "--draft-tokens", "5", "Why is the sky blue?"],
            sampling,
        ]
        .concat());
        assert_eq!(plain.stdout, drafted.stdout, "{sampling:?}");
        let summary = String::from_utf8_lossy(&drafted.stderr).into_owned();
        let numbers: Vec<usize> = summary.split("of ").nth(1).map_or(Vec::new(), |text| {
            text.split([' ', ';']).filter_map(|word| word.parse().ok()).take(2).collect()
        });
        let [guessed, right] = numbers[..] else { panic!("{summary}") };
        // It does not know of bans and constraints before the model has chosen.
        let free = !sampling.iter().any(|arg| ["--ban", "--regex"].contains(arg));
        assert!(guessed >= 20 && right >= if free { guessed * 95 / 100 } else { guessed / 4 }, "{summary}");
    }
}

/// Vocabularies that differ are refused before anything is loaded, by the first token that does.
#[test]
fn a_draft_of_other_tokens_is_refused() {
    let (gguf, draft) = (open(SMOLLM2), open(GEMMA3));
    let loaded = Llm::with_draft(&gguf, &draft, &Options::default(), &mut |_, _| panic!("it is loaded"));
    let error = loaded.err().expect("a refusal").to_string();
    assert!(error.contains("its token 0 is \"<pad> (special)\", the model's is \"<|endoftext|>"), "{error}");
}

/// Both have to fit, and nothing is loaded if they do not.
#[test]
fn a_model_and_its_draft_that_do_not_fit_are_refused() {
    let (gguf, mut options) = (open(SMOLLM2), Options::default());
    options.load.sequences = 1 << 20;
    let loaded = Llm::with_draft(&gguf, &gguf, &options, &mut |_, _| panic!("it is loaded"));
    let error = loaded.err().expect("a refusal").to_string();
    assert!(error.contains("the model and its draft do not fit"), "{error}");
}

/// Who did not load a draft model cannot ask for its guesses.
#[test]
fn without_a_draft_none_can_be_asked_for() {
    let _cores = cores();
    let llm =
        Llm::from_gguf(&open(SMOLLM2), &Options::default(), &mut |_, _| {}).expect("the model is loaded");
    let refused =
        llm.complete("Once", &Generate { draft: 2, ..Generate::default() }).err().expect("a refusal");
    assert!(refused.to_string().contains("no draft model"), "{refused}");
}

/// The answer has no trace of what is banned, goes on otherwise, and is the same with guesses, with log-probabilities and on one
/// thread; a seed repeats it.
#[test]
fn what_is_banned_never_comes() {
    let _cores = cores();
    for sampling in [&["--temp", "0"][..], &["--seed", "5"]] {
        let of =
            |more: &[&str]| stdout(&[&["run", "-n", "60", "Why is the sky blue?"], sampling, more].concat());
        let plain = of(&[]);
        // Words of it, one that spans tokens, and a letter that most of its tokens have.
        let words: Vec<&str> = plain.split(' ').filter(|word| word.len() > 3).collect();
        let two = format!("{} {}", words[2], words[3]);
        for banned in [&["--ban", words[0], "--ban", words[4]][..], &["--ban", &two], &["--ban", "e"]] {
            let text = of(banned);
            let strings = banned.chunks(2).map(|pair| pair[1]);
            strings.for_each(|string| assert!(!text.contains(string), "{string:?} in {text}"));
            assert!(text.len() > 40, "{text}");
            assert_eq!(text, of(&[banned, &["--lookup", "4"]].concat()));
            assert_eq!(text, of(&[banned, &["-t", "1"]].concat()));
            let json = of(&[banned, &["--logprobs", "0"]].concat());
            let bytes = json.lines().flat_map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
                line["bytes"].as_array().expect("bytes").iter().filter_map(|b| b.as_u64()).collect::<Vec<_>>()
            });
            let bytes: Vec<u8> = bytes.map(|byte| byte as u8).collect();
            let answer = String::from_utf8_lossy(&bytes).replace("<|im_end|>", "");
            assert_eq!(answer + "\n", text);
        }
        // What the plain text does not have changes nothing.
        assert_eq!(plain, of(&["--ban", "xylophone", "--ban", "Sky blue? "]));
    }
}

/// Where nothing is left the answer ends and says so.
#[test]
fn an_answer_that_cannot_go_on_says_so() {
    let _cores = cores();
    let output = run(&[
        "run",
        "--raw",
        "--temp",
        "0",
        "--regex",
        "yes|no",
        "--ban",
        "y",
        "--ban",
        "n",
        "Is water wet?",
    ]);
    assert_eq!(output.stdout, b"\n");
    let note = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(note.contains("--ban excludes"), "{note}");
}

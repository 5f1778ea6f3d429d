//! Conversations through pipes: answers on stdout, everything else on stderr.

use std::io::{BufRead, BufReader, Read, Write};

use serde_json::Value;

use super::*;

/// Greedy answers of eight tokens, unless `more` says otherwise.
fn chat_args<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["chat", "-m", model];
    let missing = |flag: &&str| !more.iter().any(|arg| arg.starts_with(&flag[..flag.len() - 1]));
    args.extend(["--temp=0", "-n8"].iter().filter(|flag| missing(flag)));
    args.extend(more);
    args
}

/// A conversation with the tiny model that must go well: answers, and what was said beside them.
fn talk(more: &[&str], input: &str) -> (String, String) {
    let output = run_with_input(&chat_args(tiny_model(), more), input.as_bytes());
    assert!(output.status.success(), "{input}: {}", stderr(&output));
    (stdout(&output), stderr(&output))
}

/// stderr of a conversation in which a line fails.
fn talk_fails(more: &[&str], input: &str) -> (String, String) {
    let output = run_with_input(&chat_args(tiny_model(), more), input.as_bytes());
    assert_eq!(output.status.code(), Some(1), "{input}: {}", stderr(&output));
    let text = stderr(&output);
    assert!(!text.contains("panicked") && !text.contains('\u{1b}'), "{text}");
    (stdout(&output), text)
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }
}

fn read_json(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("the file is there")).expect("valid JSON")
}

#[test]
fn the_first_answer_is_that_of_run() {
    let (answer, notes) = talk(&["--system", "Be brief."], "hello\n");
    let of_run =
        succeeds(&["run", "-m", tiny_model(), "--temp", "0", "-n8", "--system", "Be brief.", "hello"]);
    assert_eq!(answer, of_run);
    assert_eq!(notes, "", "a script sees nothing but answers");
    let (seeded, _) = talk(&["--temp=1.2", "--seed=5"], "hello\n");
    let of_run = succeeds(&["run", "-m", tiny_model(), "--temp", "1.2", "--seed", "5", "-n8", "hello"]);
    assert_eq!(seeded, of_run);
}

#[test]
fn later_turns_compute_only_what_is_new_and_answer_the_same() {
    let folder = Folder::new();
    let file = folder.path("chat.json");
    let (both, notes) = talk(&[], &format!("first\n/save {file}\nand second\n/stats\n"));
    let line = notes.lines().find(|l| l.starts_with("last prompt")).expect("statistics");
    let numbers: Vec<usize> = line.split_whitespace().filter_map(|w| w.parse().ok()).collect();
    let [tokens, kept, computed] = numbers[..3] else { panic!("{line}") };
    assert!(kept > 10 && kept + computed == tokens && computed < tokens, "{line}");
    // Another process begins with nothing in its cache.
    let (resumed, notes) = {
        let args = ["chat", "-m", tiny_model(), "--resume", &file];
        let output = run_with_input(&args, b"and second\n/stats\n");
        assert!(output.status.success(), "{}", stderr(&output));
        (stdout(&output), stderr(&output))
    };
    assert!(notes.contains(" tokens: 0 kept"), "{notes}");
    assert!(both.ends_with(&resumed) && both.len() > resumed.len(), "{both:?} {resumed:?}");
}

#[test]
fn sessions_are_versioned_json_and_refuse_what_they_are_not() {
    let folder = Folder::new();
    let file = folder.path("chat.json");
    let (_, notes) =
        talk(&["--typical=0.9", "--stop=zzz"], &format!("/system Be \"nice\".\nhi\n/save {file}\n"));
    assert!(notes.contains("saved 1 exchange"), "{notes}");
    let saved = read_json(&file);
    assert_eq!((&saved["format"], &saved["version"]), (&"minfer-chat".into(), &1.into()));
    assert_eq!(saved["model"]["name"], "tiny (synthetic)");
    assert_eq!((&saved["settings"]["temp"], &saved["settings"]["typical"]), (&0.0.into(), &0.9.into()));
    let roles: Vec<&Value> =
        saved["messages"].as_array().expect("an array").iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    assert_eq!(saved["messages"][0]["content"], "Be \"nice\".");
    // It is loaded within a chat too, and saved to where it came from.
    let (_, notes) = talk(&[], &format!("/load {file}\nmore\n/save\n"));
    assert!(notes.contains("1 exchange:") && notes.contains("saved 2 exchanges"), "{notes}");
    // Another model goes on with it, and says so.
    let other = run_with_input(&["chat", "-m", endless_model(), "--resume", &file], b"/stats\n");
    assert!(
        stderr(&other).contains("held with tiny (synthetic), goes on with endless (synthetic)"),
        "{}",
        stderr(&other)
    );
    // Flags that the file decides are not passed over in silence.
    fails(&["chat", "-m", tiny_model(), "--resume", &file, "--temp", "0"], 2);
    let newer = folder.path("newer.json");
    let text = std::fs::read_to_string(&file)
        .expect("the file is there")
        .replace("\"version\": 1", "\"version\": 9");
    std::fs::write(&newer, text).expect("a temporary file");
    let notes = folder.path("notes.txt");
    std::fs::write(&notes, "my notes").expect("a temporary file");
    for (path, word) in
        [(&newer, "version 9"), (&notes, "no chat of minfer"), (&folder.path("none"), "cannot read")]
    {
        let text = fails(&["chat", "-m", tiny_model(), "--resume", path], 1);
        assert!(text.contains(word) && text.contains(path.as_str()), "{text}");
    }
    let (_, text) = talk_fails(&[], &format!("/save {notes}\n/save {}\n", folder.path("no/where")));
    assert!(
        text.contains("left as it is") && text.contains("cannot write") && text.contains("2 of the lines"),
        "{text}"
    );
    assert_eq!(std::fs::read(&notes).expect("the file is there"), b"my notes");
}

/// A pipe would be waited for.
#[cfg(unix)]
#[test]
fn sessions_are_saved_to_regular_files_only() {
    let folder = Folder::new();
    let pipe = folder.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let (_, text) = talk_fails(&[], &format!("/save {pipe}\n"));
    assert!(text.contains("no regular file"), "{text}");
}

#[test]
fn answers_are_taken_back_and_given_again() {
    let folder = Folder::new();
    let (a, b) = (folder.path("a.json"), folder.path("b.json"));
    let (answers, notes) = talk(&[], &format!("one\ntwo\n/undo\n/save {a}\n/regen\n/save {b}\n"));
    assert!(notes.contains("taken back: two"), "{notes}");
    let (a, b) = (read_json(&a)["messages"].clone(), read_json(&b)["messages"].clone());
    assert_eq!(a.as_array().map(Vec::len), Some(2));
    assert_eq!(a, b, "greedy answers repeat");
    let lines = answers.matches('\n').count();
    assert!(lines >= 3, "{answers}");
    // With a seed an answer repeats, and the next attempt has the next seed.
    let (_, notes) =
        talk(&["--temp=1", "--seed=40"], "one\n/stats\n/regen\n/stats\n/regen\n/stats\ntwo\n/stats\n");
    let seeds: Vec<&str> = notes.lines().filter_map(|l| l.split_once("seed ").map(|(_, s)| s)).collect();
    assert_eq!(seeds, ["40", "41", "42", "40"]);
    let (_, text) = talk_fails(&[], "/regen\n/undo\n/drop 1\n/save\n");
    for word in
        ["no message to answer", "nothing to take back", "no exchange before", "/save FILE", "4 of the lines"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn settings_are_listed_changed_and_checked() {
    let (_, notes) = talk(&[], "/set top-k 7\n/set seed 3\n/set on-full drop\n/set\n/set seed none\n/set\n");
    assert!(notes.contains("top-k              7") && notes.contains("temp               0.0"), "{notes}");
    assert!(notes.contains("seed               3") && notes.contains("seed               none"), "{notes}");
    let (answers, _) = talk(&[], "/set max-tokens 2\nhello\n");
    let (longer, _) = talk(&[], "hello\n");
    assert!(longer.starts_with(answers.trim_end()) && longer.len() > answers.len(), "{answers:?} {longer:?}");
    let (_, text) = talk_fails(&[], "/set heat 1\n/set temp hot\n/set top-p 1.5\n/set temp\n/bogus\n/set\n");
    for word in ["no setting 'heat'", "temp hot", "top_p is 1.5", "/set temp VALUE", "no command '/bogus'"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(text.contains("top-p              0.95"), "a wrong value changes nothing: {text}");
    let (_, notes) = talk(&[], "/help\n/exit\nnot read\n");
    for name in [
        "/help", "/exit", "/new", "/system", "/regen", "/undo", "/drop", "/save", "/load", "/set", "/stats",
        "/multi",
    ] {
        assert!(notes.contains(name), "{name}: {notes}");
    }
}

#[test]
fn messages_have_as_many_lines_as_they_want() {
    let folder = Folder::new();
    let file = folder.path("chat.json");
    let input = format!("a\\\nb\n\"\"\"\n  c\\\n\n/d\n\"\"\"\n/multi\ne\nf\n\n/multi\n /g\n\n/save {file}\n");
    talk(&["-n1"], &input);
    let saved = read_json(&file);
    let asked: Vec<&str> = saved["messages"]
        .as_array()
        .expect("an array")
        .iter()
        .filter(|m| m["role"] == "user")
        .filter_map(|m| m["content"].as_str())
        .collect();
    assert_eq!(asked, ["a\nb", "  c\\\n\n/d", "e\nf", "/g"]);
    let open = run_with_input(&chat_args(tiny_model(), &[]), b"\"\"\"\nnever ends\n");
    check_failure(&open, 1, "an open quotation");
}

#[test]
fn a_full_context_stops_with_a_word_and_goes_on_as_told() {
    // Each exchange takes some 30 of 96 tokens.
    let small = ["-c96"];
    let folder = Folder::new();
    let file = folder.path("chat.json");
    let long = "a message of quite a few letters";
    let input = format!("{long}\n{long}\n{long}\n{long}\n/drop 2\n/regen\n/save {file}\n");
    let (_, text) = talk_fails(&small, &input);
    assert!(
        text.contains("the context is full") || text.contains("is full: the answer is cut off"),
        "{text}"
    );
    assert!(text.contains("/drop N") && text.contains("dropped 2 exchanges"), "{text}");
    let saved = read_json(&file);
    let count = saved["messages"].as_array().map_or(0, Vec::len);
    assert!(count >= 2 && count.is_multiple_of(2), "the last message has its answer: {saved}");
    // A single message that is too long.
    let (answers, text) = talk_fails(&small, &format!("{}\n/stats\n", "word ".repeat(200)));
    assert!(text.contains("96 fit") && text.contains("/new") && !text.contains("/drop"), "{text}");
    assert_eq!(answers.trim(), "");
    // Dropping by itself, also in the middle of an answer.
    let input = format!("{long}\n{long}\n{long}\n{long}\n/save {file}2\n");
    let (_, text) = talk(&["-c96", "--on-full=drop"], &input);
    assert!(text.contains("the context was full: the oldest"), "{text}");
    let args = ["chat", "-m", tiny_model(), "--temp", "0", "-c96", "-n70", "--on-full=drop"];
    let output = run_with_input(&args, format!("{long}\n{long}\n/stats\n").as_bytes());
    let text = stderr(&output);
    assert!(text.contains("the oldest exchange was dropped"), "{text}");
    assert!(text.contains("1 exchange,"), "{text}");
    // One answer alone fills it: nothing is left to drop.
    let output =
        run_with_input(&["chat", "-m", tiny_model(), "--temp", "0", "-c64", "--on-full=drop"], b"hello\n");
    assert!(stderr(&output).contains("64 tokens is full: the answer is cut off"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_model_without_a_template_is_refused_by_name() {
    let key = b"tokenizer.chat_template";
    let mut bytes = std::fs::read(tiny_model()).expect("the model is there");
    let at = bytes.windows(key.len()).position(|w| w == key).expect("a template");
    bytes[at..at + key.len()].copy_from_slice(b"tokenizer.chat_nothing1");
    let folder = Folder::new();
    let path = folder.path("base.gguf");
    std::fs::write(&path, bytes).expect("a temporary file");
    let text = fails(&["chat", "-m", &path], 1);
    assert!(
        text.contains(&path) && text.contains("run --raw") && text.contains("no chat template"),
        "{text}"
    );
}

#[test]
fn an_interrupt_stops_the_answer_and_keeps_the_chat() {
    let mut child = minfer()
        .args(["chat", "-m", endless_model(), "-c", "65536", "--temp", "0", "-t", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("piped");
    let mut out = child.stdout.take().expect("piped");
    let mut err = BufReader::new(child.stderr.take().expect("piped"));
    stdin.write_all(b"hello\n").expect("it reads");
    let mut first = [0; 1];
    out.read_exact(&mut first).expect("text arrives");
    let drain = std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
    signals::send("-INT", child.id());
    let mut line = String::new();
    err.read_line(&mut line).expect("a line arrives");
    assert_eq!(line, "(stopped)\n");
    stdin.write_all(b"/stats\n").expect("it still reads");
    line.clear();
    err.read_line(&mut line).expect("a line arrives");
    assert!(line.starts_with("conversation  1 exchange,"), "{line}");
    // Without an answer under way it leaves.
    signals::send("-INT", child.id());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    drain.join().expect("no panic").expect("stdout is read");
}

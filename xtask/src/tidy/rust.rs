//! Rules about Rust code: where `unsafe`, instruction sets and environment variables may appear.

/// Where `unsafe` may appear.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/gguf/src/",
    "crates/cpu/src/arch.rs",
    "crates/cpu/src/arch/",
    "crates/cpu/src/simd.rs",
    "crates/cpu/src/format.rs",
    "crates/cpu/src/format/",
    "crates/cpu/src/kernel/",
    "crates/cpu/src/matrix.rs",
    "crates/cpu/src/matrix/",
    "crates/cpu/src/device/",
    "crates/cpu/src/pool.rs",
    "crates/cpu/src/pool/",
    "crates/cpu/src/mem.rs",
    "crates/cpu/src/mem/",
    "crates/cpu/src/detect.rs",
    "crates/cpu/src/probe.rs",
    "crates/cpu/src/probe/",
    "crates/cpu/src/detect/",
    "crates/cuda/src/driver.rs",
    "crates/cuda/src/driver/",
    "crates/cuda/src/launch.rs",
    "crates/cuda/src/matrix.rs",
    "crates/cuda/src/device/",
];

/// Where the instruction set may be asked for.
const ISA_ALLOWED: &[&str] = &["crates/cpu/"];

/// Where environment variables may be read.
const ENV_ALLOWED: &[&str] = &["crates/minfer/src/env.rs", "crates/cuda/build.rs"];

/// Runs the checks on one file.
pub(super) fn check(path: &str, source: &str) -> Vec<String> {
    let lines = split(source);
    let mut complaints = Vec::new();
    let allowed = |list: &[&str]| list.iter().any(|p| path.starts_with(p));
    for (i, line) in lines.iter().enumerate() {
        let mut complain = |what: &str| complaints.push(format!("{path}:{}: {what}", i + 1));
        if has_word(&line.code, "unsafe") {
            if !allowed(UNSAFE_ALLOWED) {
                complain("unsafe is not allowed here");
            } else if !justified(&lines, i) {
                complain("unsafe without a SAFETY comment");
            }
        }
        let isa = ["target_arch", "target_feature", "is_x86_feature_detected", "is_aarch64_feature_detected"];
        if !allowed(ISA_ALLOWED) && isa.iter().any(|w| has_word(&line.code, w)) {
            complain("instruction sets are the business of crates/cpu");
        }
        let env = ["env::var", "env::var_os", "env::vars", "env::vars_os"];
        if !allowed(ENV_ALLOWED) && env.iter().any(|w| has_word(&line.code, w)) {
            complain(
                "environment variables are read in crates/minfer/src/env.rs only, and by the build of crates/cuda",
            );
        }
    }
    complaints
}

/// A line, its code and its comments apart. String and character literals are blanked.
#[derive(Default)]
struct Line {
    code: String,
    comment: String,
}

/// Whether the `unsafe` of line `at` has its reason: a `SAFETY:` comment on the line or directly above the statement
/// it is in. For an `unsafe fn` also a `# Safety` section of its own, of the trait or `impl` that it belongs to, or
/// (if private) of the module. A function pointer type needs none.
fn justified(lines: &[Line], at: usize) -> bool {
    let code = &lines[at].code;
    let after = code.split("unsafe").nth(1).unwrap_or_default().trim_start();
    let function = after.starts_with("fn") || after.starts_with("extern");
    let name = after.trim_start_matches("extern").trim_start_matches([' ', '"']).trim_start_matches("fn");
    if function && name.starts_with('(') {
        return true;
    }
    if is_reason(&lines[at]) || reason_above(lines, at) {
        return true;
    }
    if !function {
        return false;
    }
    let mut indent = indentation(code);
    for (i, line) in lines[..at].iter().enumerate().rev() {
        if !line.code.trim().is_empty() && indentation(&line.code) < indent {
            indent = indentation(&line.code);
            if reason_above(lines, i) {
                return true;
            }
        }
    }
    let of_module = |l: &Line| l.comment.starts_with("//!") && l.comment.contains("# Safety");
    !has_word(code, "pub") && lines.iter().any(of_module)
}

/// Spaces before the code of a line.
fn indentation(code: &str) -> usize {
    code.len() - code.trim_start().len()
}

/// Whether a line's comment gives a reason.
fn is_reason(line: &Line) -> bool {
    line.comment.contains("SAFETY:")
        || line.comment.contains("SAFETY (all")
        || line.comment.contains("# Safety")
}

/// Whether the comments directly above the statement of line `at` give a reason. The end of another statement or the
/// start of a block ends the search; attributes, comments and the beginning of this statement do not.
fn reason_above(lines: &[Line], at: usize) -> bool {
    for line in lines[..at].iter().rev() {
        if is_reason(line) {
            return true;
        }
        let code = line.code.trim();
        let attribute = code.starts_with("#[");
        if line.comment.is_empty() && !attribute && (code.is_empty() || code.ends_with([';', '}', '{'])) {
            return false;
        }
    }
    false
}

/// Whether `word` stands in `code` on its own, not as a part of a longer name.
fn has_word(code: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .any(|(i, _)| !code[..i].ends_with(part_of_name) && !code[i + word.len()..].starts_with(part_of_name))
}

/// Splits a source file into lines of code and comment. Knows nested block comments, raw strings, and that a quote
/// may be a lifetime.
fn split(source: &str) -> Vec<Line> {
    let mut lines = vec![Line::default()];
    let chars: Vec<char> = source.chars().collect();
    let mut i = 0;
    let mut depth = 0; // of block comments
    while i < chars.len() {
        let rest = &chars[i..];
        let line = lines.last_mut().expect("never empty");
        match rest {
            ['\n', ..] => {
                lines.push(Line::default());
                i += 1;
            }
            ['/', '*', ..] => {
                depth += 1;
                i += 2;
            }
            ['*', '/', ..] if depth > 0 => {
                depth -= 1;
                i += 2;
            }
            [c, ..] if depth > 0 => {
                line.comment.push(*c);
                i += 1;
            }
            ['/', '/', ..] => {
                let text: String = rest.iter().take_while(|c| **c != '\n').collect();
                i += text.chars().count();
                line.comment.push_str(&text);
            }
            _ => match literal(&chars, i) {
                Some(len) => {
                    line.code.push_str("\"\"");
                    let newlines = rest[..len].iter().filter(|c| **c == '\n').count();
                    lines.extend(std::iter::repeat_with(Line::default).take(newlines));
                    i += len;
                }
                None => {
                    line.code.push(chars[i]);
                    i += 1;
                }
            },
        }
    }
    lines
}

/// Length of the string or character literal that starts at `i`, if one does.
fn literal(chars: &[char], i: usize) -> Option<usize> {
    let rest = &chars[i..];
    let in_name = i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_');
    match rest {
        ['"', ..] => Some(quoted(rest, '"')),
        ['\'', '\\', ..] => Some(quoted(rest, '\'')),
        ['\'', _, '\'', ..] => Some(3),
        ['r', '#' | '"', ..] if !in_name => {
            let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
            if rest.get(1 + hashes) != Some(&'"') {
                return None; // a raw identifier
            }
            let mut end: Vec<char> = vec!['"'];
            end.extend(std::iter::repeat_n('#', hashes));
            let start = hashes + 2;
            let close = rest[start..].windows(end.len()).position(|w| w == end.as_slice());
            Some(close.map_or(rest.len(), |p| start + p + end.len()))
        }
        _ => None,
    }
}

/// Length of a literal with escapes, quotes included.
fn quoted(rest: &[char], quote: char) -> usize {
    let mut i = 1;
    while i < rest.len() && rest[i] != quote {
        i += if rest[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARCH: &str = "crates/cpu/src/arch/avx2.rs";

    #[test]
    fn unsafe_outside_its_places_is_found() {
        assert_eq!(check("crates/model/src/a.rs", "// SAFETY: no\nunsafe { f() }").len(), 1);
        assert!(
            check("crates/model/src/a.rs", "#![forbid(unsafe_code)] // unsafe\nlet s = \"unsafe\";")
                .is_empty()
        );
        assert!(check("crates/model/src/a.rs", "let s = r#\"an \"unsafe\" one\"#; /* unsafe */").is_empty());
    }

    #[test]
    fn unsafe_needs_a_reason() {
        assert_eq!(check(ARCH, "fn f() {\n    unsafe { g() }\n}").len(), 1);
        assert!(
            check(ARCH, "fn f() {\n    // SAFETY: g\n    // has no needs.\n    unsafe { g() }\n}").is_empty()
        );
        assert!(check(ARCH, "    // SAFETY: x\n    let a =\n        unsafe { g() };").is_empty());
        assert_eq!(check(ARCH, "    // SAFETY: x\n    let a = 1;\n    let b = unsafe { g() };").len(), 1);
        assert!(check(ARCH, "type F = unsafe fn(usize);").is_empty());
        assert_eq!(check(ARCH, "unsafe fn f() {}").len(), 1);
        assert!(check(ARCH, "/// # Safety\n/// None.\n#[inline]\npub unsafe fn f() {}").is_empty());
        assert!(check(ARCH, "//! # Safety\n//! All of them.\n\nunsafe fn f() {}").is_empty());
        assert_eq!(check(ARCH, "//! # Safety\n//! All of them.\n\npub unsafe fn f() {}").len(), 1);
        let of_impl = "impl A for B {\n    fn g() {\n    }\n    unsafe fn f() {\n    }\n}";
        assert_eq!(check(ARCH, of_impl).len(), 1);
        assert!(check(ARCH, &format!("// SAFETY (all functions): the trait's.\n{of_impl}")).is_empty());
    }

    #[test]
    fn instruction_sets_and_variables_stay_in_their_places() {
        assert_eq!(check("crates/model/src/a.rs", "#[cfg(target_arch = \"x86_64\")]").len(), 1);
        assert_eq!(check("crates/engine/src/a.rs", "let v = std::env::var(\"X\");").len(), 1);
        assert!(check("crates/minfer/src/env.rs", "std::env::var(\"X\")").is_empty());
        assert!(check("crates/engine/src/a.rs", "env!(\"CARGO_MANIFEST_DIR\")").is_empty());
    }

    #[test]
    fn the_splitter_knows_lifetimes_and_characters() {
        let lines = split("fn f<'a>(c: &'a str) { let q = '\"'; let e = '\\''; g() } // x\n\"a\n b\" h");
        assert!(lines[0].code.contains("g()") && lines[0].comment == "// x");
        assert_eq!(lines[2].code.trim(), "h");
    }
}

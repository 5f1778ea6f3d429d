//! Filters, tests and functions that a template uses, so that unknown ones are found before it is rendered.

use rustc_hash::FxHashSet;

/// What a name is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Filter,
    Test,
    Function,
}

/// A use of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use<'s> {
    pub(super) kind: Kind,
    pub(super) name: &'s str,
    /// From 1.
    pub(super) line: usize,
    /// Within an `if`, so that it may never be reached.
    pub(super) conditional: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'s> {
    Name(&'s str),
    Sign(u8),
    Literal,
}

/// A tag `{{ … }}` or `{% … %}`.
struct Tag<'s> {
    is_statement: bool,
    /// Each with its line.
    tokens: Vec<(Token<'s>, usize)>,
}

/// Words that may stand before a parenthesis without being called.
const KEYWORDS: [&str; 20] = [
    "if",
    "elif",
    "else",
    "for",
    "in",
    "not",
    "and",
    "or",
    "is",
    "set",
    "with",
    "filter",
    "call",
    "do",
    "include",
    "import",
    "from",
    "extends",
    "recursive",
    "as",
];

/// Functions that exist in some blocks only.
const OF_BLOCKS: [&str; 3] = ["caller", "loop", "super"];

/// The uses in a source that parses. Names that the template itself defines, or asks whether they are defined, are not
/// among the functions.
pub(super) fn uses(source: &str) -> Vec<Use<'_>> {
    let tags = tags(source);
    let mut found = Vec::new();
    let mut own: FxHashSet<&str> = OF_BLOCKS.into_iter().collect();
    let mut depth = 0usize;
    for Tag { is_statement, tokens } in &tags {
        let keyword = match tokens.first() {
            Some((Token::Name(name), _)) if *is_statement => *name,
            _ => "",
        };
        if matches!(keyword, "endif") {
            depth = depth.saturating_sub(1);
        }
        let has_choice = tokens.iter().skip(1).any(|(token, _)| *token == Token::Name("if"));
        // The condition of an `if` is always reached, unless it is in another one; those of `elif` are not.
        let conditional = depth > 0 || has_choice;
        depth += usize::from(keyword == "if");
        define(keyword, tokens, &mut own);
        for (at, &(token, line)) in tokens.iter().enumerate() {
            let Token::Name(name) = token else { continue };
            let before = |back: usize| at.checked_sub(back).map(|at| tokens[at].0);
            let after = tokens.get(at + 1).map(|(token, _)| *token);
            let kind = match (before(1), before(2)) {
                (Some(Token::Sign(b'|')), _) => Kind::Filter,
                (Some(Token::Name("filter")), None) if *is_statement => Kind::Filter,
                (Some(Token::Name("is")), _) if name != "not" => Kind::Test,
                (Some(Token::Name("not")), Some(Token::Name("is"))) => Kind::Test,
                (Some(Token::Sign(b'.')), _) => continue,
                (Some(Token::Name("macro")), None) => continue,
                _ if after == Some(Token::Sign(b'(')) && !KEYWORDS.contains(&name) => Kind::Function,
                _ => continue,
            };
            if kind == Kind::Test && matches!(name, "defined" | "undefined" | "callable") {
                let back = if before(1) == Some(Token::Name("not")) { 3 } else { 2 };
                own.extend(
                    before(back)
                        .and_then(|token| if let Token::Name(name) = token { Some(name) } else { None }),
                );
            }
            found.push(Use { kind, name, line, conditional });
        }
    }
    found.retain(|found| found.kind != Kind::Function || !own.contains(found.name));
    found
}

/// Takes note of the names that a statement defines.
fn define<'s>(keyword: &str, tokens: &[(Token<'s>, usize)], own: &mut FxHashSet<&'s str>) {
    let end = match keyword {
        "set" => Token::Sign(b'='),
        "for" => Token::Name("in"),
        // The name, its parameters, and what they default to.
        "macro" | "call" | "import" | "from" | "with" => Token::Sign(0),
        _ => return,
    };
    let names = tokens.iter().skip(1).map(|(token, _)| *token).take_while(|token| *token != end);
    own.extend(names.filter_map(|token| if let Token::Name(name) = token { Some(name) } else { None }));
}

/// The tag of most tokens: its line, and how many.
pub(super) fn longest_tag(source: &str) -> Option<(usize, usize)> {
    let sizes =
        tags(source).into_iter().map(|tag| (tag.tokens.first().map_or(1, |token| token.1), tag.tokens.len()));
    sizes.max_by_key(|(_, tokens)| *tokens)
}

fn tags(source: &str) -> Vec<Tag<'_>> {
    let mut tags: Vec<Tag<'_>> = Vec::new();
    let (mut at, mut line) = (0, 1);
    let skip =
        |from: usize, to: &str| source[from..].find(to).map_or(source.len(), |found| from + found + to.len());
    while let Some(found) = source[at..].find('{') {
        let begin = at + found;
        line += source[at..begin].matches('\n').count();
        let end = match source.as_bytes().get(begin + 1) {
            Some(b'#') => skip(begin, "#}"),
            Some(sign @ (b'{' | b'%')) => {
                let is_statement = *sign == b'%';
                let (tokens, end) = tokens(source, begin + 2, line, if is_statement { "%}" } else { "}}" });
                let is_raw = is_statement && matches!(&tokens[..], [(Token::Name("raw"), _)]);
                tags.push(Tag { is_statement, tokens });
                if is_raw { skip(end, "endraw") } else { end }
            }
            _ => begin + 1,
        };
        line += source[begin..end].matches('\n').count();
        at = end;
    }
    tags
}

/// The tokens from `at` up to `close`, and where that ends.
fn tokens<'s>(
    source: &'s str,
    mut at: usize,
    mut line: usize,
    close: &str,
) -> (Vec<(Token<'s>, usize)>, usize) {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let mut braces = 0usize;
    while let Some(&byte) = bytes.get(at) {
        // `}}` may close two maps, too.
        if braces == 0 && source[at..].starts_with(close) {
            return (tokens, at + close.len());
        }
        let begin = at;
        match byte {
            b'\n' => line += 1,
            b'"' | b'\'' => {
                at += 1;
                while bytes.get(at).is_some_and(|end| *end != byte) {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                tokens.push((Token::Literal, line));
                line += bytes[begin..at.min(bytes.len())].iter().filter(|byte| **byte == b'\n').count();
            }
            b'_' | b'a'..=b'z' | b'A'..=b'Z' | 0x80.. => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
                while bytes.get(at + 1).is_some_and(is_part) {
                    at += 1;
                }
                tokens.push((Token::Name(&source[begin..=at]), line));
            }
            b'0'..=b'9' => {
                while bytes.get(at + 1).is_some_and(u8::is_ascii_alphanumeric) {
                    at += 1;
                }
                tokens.push((Token::Literal, line));
            }
            b' ' | b'\t' => {}
            // White space control.
            b'-' | b'+' if tokens.is_empty() || source[at + 1..].starts_with(close) => {}
            sign => {
                braces = match sign {
                    b'{' => braces + 1,
                    b'}' => braces.saturating_sub(1),
                    _ => braces,
                };
                tokens.push((Token::Sign(sign), line));
            }
        }
        at += 1;
    }
    (tokens, source.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_found_with_their_lines() {
        let source = "{# x|no() #}{{ a | one(b is two, {'k': {}}) }}\n{%- if not c is not three -%}{{ f('}}' | four) }}\
            {% endif %}\n{% macro own(x) %}{{ own(1) }}{% endmacro %}{% raw %}{{ y|no }}{% endraw %}\
            {{ x.method() }}{{ g() if (g is defined) else h() }}";
        let found: Vec<_> = uses(source).iter().map(|u| (u.kind, u.name, u.line, u.conditional)).collect();
        assert_eq!(
            found,
            [
                (Kind::Filter, "one", 1, false),
                (Kind::Test, "two", 1, false),
                (Kind::Test, "three", 2, false),
                (Kind::Function, "f", 2, true),
                (Kind::Filter, "four", 2, true),
                (Kind::Test, "defined", 3, true),
                (Kind::Function, "h", 3, true),
            ]
        );
    }
}

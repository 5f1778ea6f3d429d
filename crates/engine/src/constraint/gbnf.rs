//! GBNF, the grammars of llama.cpp, as regular expressions.
//!
//! A grammar of GBNF is one of characters: nothing is read ahead, and no part of it is greedy. llguidance's are of lexemes, which
//! are. So that no text is lost, a grammar becomes one lexeme, for which there must be an end to replacing rules by what they
//! stand for: a grammar with a rule that has itself inside is refused, and so are llama.cpp's tokens (`<think>`, `<[1000]>`).

use std::collections::HashMap;
use std::fmt::Write;

/// Longest regular expression that a grammar may become, in bytes.
const MAX_REGEX_BYTES: usize = 1 << 18;

/// Part of a rule.
enum Expr {
    /// One of several.
    Alt(Vec<Expr>),
    /// One after the other.
    Seq(Vec<Expr>),
    /// A regular expression that stands for one character.
    Character(String),
    /// What a rule stands for.
    Rule(String),
    /// So many times, as a regular expression says it.
    Repeat(Box<Expr>, String),
}

/// Whether a text is GBNF, if it is one of GBNF and Lark: its first rule has `::=`, where Lark has a colon alone.
pub(super) fn looks_so(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim_start).filter(|line| !line.is_empty());
    let rule = lines.find(|line| !line.starts_with('#') && !line.starts_with("//")).unwrap_or_default();
    rule.trim_start_matches(is_name).trim_start().starts_with("::=")
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// The regular expression of a grammar, from its rule `root`.
pub(super) fn to_regex(text: &str) -> Result<String, String> {
    let rules = Parser { text, at: 0 }.rules()?;
    let root = rules.get("root").ok_or("it has no rule \"root\"")?;
    let mut out = String::new();
    write_regex(root, &rules, &mut vec!["root"], &mut out)?;
    Ok(out)
}

fn write_regex<'a>(
    expr: &'a Expr,
    rules: &'a HashMap<String, Expr>,
    inside: &mut Vec<&'a str>,
    out: &mut String,
) -> Result<(), String> {
    if out.len() > MAX_REGEX_BYTES {
        return Err(format!("it is too large: more than {MAX_REGEX_BYTES} bytes with all rules replaced"));
    }
    match expr {
        Expr::Alt(list) => {
            out.push_str("(?:");
            for (index, expr) in list.iter().enumerate() {
                if index > 0 {
                    out.push('|');
                }
                write_regex(expr, rules, inside, out)?;
            }
            out.push(')');
        }
        Expr::Seq(list) => {
            for expr in list {
                write_regex(expr, rules, inside, out)?;
            }
        }
        Expr::Character(regex) => out.push_str(regex),
        Expr::Rule(name) => {
            if inside.contains(&name.as_str()) {
                return Err(format!(
                    "rule {name:?} has itself inside, which a Lark grammar can say, but GBNF here not"
                ));
            }
            let (name, rule) =
                rules.get_key_value(name).ok_or_else(|| format!("there is no rule {name:?}"))?;
            inside.push(name);
            write_regex(rule, rules, inside, out)?;
            inside.pop();
        }
        Expr::Repeat(expr, times) => {
            out.push_str("(?:");
            write_regex(expr, rules, inside, out)?;
            out.push(')');
            out.push_str(times);
        }
    }
    Ok(())
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn error<T>(&self, what: impl std::fmt::Display) -> Result<T, String> {
        let line = self.text[..self.at].matches('\n').count() + 1;
        Err(format!("line {line}: {what}"))
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.text[self.at..].starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    /// Passes over blanks and comments; over ends of lines too if they do not end a rule here.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                '#' => self.at += self.text[self.at..].find('\n').unwrap_or(self.text.len() - self.at),
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if lines => self.at += 1,
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        self.at += end;
        (end > 0).then(|| rest[..end].to_owned())
    }

    fn rules(mut self) -> Result<HashMap<String, Expr>, String> {
        let mut rules = HashMap::new();
        self.space(true);
        while self.peek().is_some() {
            let Some(name) = self.name() else { return self.error("a rule must begin with its name") };
            self.space(false);
            if !self.take("::=") {
                return self.error(format!("after {name:?} there must be ::="));
            }
            self.space(true);
            let rule = self.alternatives(false)?;
            if self.peek().is_some_and(|c| c != '\n' && c != '\r') {
                return self
                    .error(format!("{:?} in rule {name:?} is not understood", self.peek().unwrap_or(' ')));
            }
            self.space(true);
            if rules.insert(name.clone(), rule).is_some() {
                return self.error(format!("rule {name:?} is there twice"));
            }
        }
        Ok(rules)
    }

    fn alternatives(&mut self, nested: bool) -> Result<Expr, String> {
        let mut list = vec![self.sequence(nested)?];
        while self.take("|") {
            self.space(true);
            list.push(self.sequence(nested)?);
        }
        Ok(Expr::Alt(list))
    }

    fn sequence(&mut self, nested: bool) -> Result<Expr, String> {
        let mut list = Vec::new();
        loop {
            self.space(nested);
            let expr = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    Expr::Character("(?s:.)".to_owned())
                }
                Some('(') => {
                    self.at += 1;
                    let inner = self.alternatives(true)?;
                    if !self.take(")") {
                        return self.error("a ( is not closed");
                    }
                    inner
                }
                Some('<' | '!') => return self.error("tokens (<…>) are not supported"),
                Some(c) if is_name(c) => Expr::Rule(self.name().unwrap_or_default()),
                _ => return Ok(Expr::Seq(list)),
            };
            list.push(self.repeated(expr)?);
        }
    }

    fn repeated(&mut self, mut expr: Expr) -> Result<Expr, String> {
        loop {
            self.space(false);
            let times = match self.peek() {
                Some(c @ ('*' | '+' | '?')) => {
                    self.at += 1;
                    c.to_string()
                }
                Some('{') => {
                    let end = self.text[self.at..].find('}').map(|end| self.at + end);
                    let Some(end) = end else { return self.error("a { is not closed") };
                    let times = self.text[self.at + 1..end].replace([' ', '\t'], "");
                    let mut numbers = times.splitn(2, ',');
                    let number =
                        |n: &str| !n.is_empty() && n.len() < 6 && n.bytes().all(|b| b.is_ascii_digit());
                    let first = numbers.next().is_some_and(number);
                    if !first || !numbers.next().is_none_or(|n| n.is_empty() || number(n)) {
                        return self.error(format!("{{{times}}} is no number of times"));
                    }
                    self.at = end + 1;
                    format!("{{{times}}}")
                }
                _ => return Ok(expr),
            };
            expr = Expr::Repeat(Box::new(expr), times);
        }
    }

    fn literal(&mut self) -> Result<Expr, String> {
        self.at += 1;
        let mut list = Vec::new();
        while !self.take("\"") {
            list.push(Expr::Character(escaped(self.character()?)));
        }
        Ok(Expr::Seq(list))
    }

    fn class(&mut self) -> Result<Expr, String> {
        self.at += 1;
        let mut regex = if self.take("^") { "[^".to_owned() } else { "[".to_owned() };
        let start = regex.len();
        while !self.take("]") {
            let first = self.character()?;
            regex += &escaped(first);
            if self.text[self.at..].starts_with('-') && !self.text[self.at + 1..].starts_with(']') {
                self.at += 1;
                let last = self.character()?;
                if last < first {
                    return self.error(format!("the range {first:?}-{last:?} descends"));
                }
                let _ = write!(regex, "-{}", escaped(last));
            }
        }
        if regex.len() == start {
            return self.error("a class of characters is empty");
        }
        Ok(Expr::Character(regex + "]"))
    }

    /// One character of a literal or class, which may be spelled by an escape.
    fn character(&mut self) -> Result<char, String> {
        let Some(c) = self.peek().filter(|&c| c != '\n') else {
            return self.error("a \" or [ is not closed");
        };
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(c);
        }
        let Some(escape) = self.peek() else { return self.error("a \\ at the end") };
        self.at += escape.len_utf8();
        let digits = match escape {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' => return Ok(escape),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return self.error(format!("\\{escape} is not an escape")),
        };
        let code = self.text.get(self.at..self.at + digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let Some(c) = code.and_then(char::from_u32) else {
            return self.error(format!("\\{escape} needs {digits} hexadecimal digits of a character"));
        };
        self.at += digits;
        Ok(c)
    }
}

/// A character as a regular expression has it, in a class and outside.
fn escaped(c: char) -> String {
    format!("\\x{{{:X}}}", c as u32)
}

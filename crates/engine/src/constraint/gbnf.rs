//! GBNF, the grammars of llama.cpp.
//!
//! A grammar of GBNF is one of characters: nothing is read ahead, and no part of it is greedy. llguidance's are of lexemes,
//! which are. A grammar without recursion becomes one lexeme, in which every rule is replaced by what it stands for, so that no
//! text is lost. One with recursion becomes a grammar of lexemes that are proven to lose none ([`lexemes`]). llama.cpp's tokens
//! (`<think>`, `<[1000]>`) are refused.

mod chars;
mod lexemes;

use std::collections::{BTreeMap, HashSet};

use chars::Chars;

/// Longest regular expression or Lark grammar that a grammar may become, in bytes.
const MAX_BYTES: usize = 1 << 18;
/// Parts within each other at most, those of rules within rules among them.
const MAX_DEPTH: usize = 800;

/// Part of a rule.
#[derive(Clone)]
enum Expr {
    /// One of several.
    Alt(Vec<Expr>),
    /// One after the other.
    Seq(Vec<Expr>),
    /// One of these characters.
    Character(Chars),
    /// What a rule stands for.
    Rule(String),
    /// At least and at most so many times.
    Repeat(Box<Expr>, u32, Option<u32>),
}

/// Rules by name.
type Rules = BTreeMap<String, Expr>;

/// What a grammar is lowered to.
#[derive(Debug)]
pub(super) enum Lowered {
    /// A regular expression.
    Regex(String),
    /// A grammar in Lark.
    Lark(String),
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

/// A grammar, from its rule `root`.
pub(super) fn lower(text: &str) -> Result<Lowered, String> {
    let rules = Parser { text, at: 0 }.rules()?;
    let root = rules.get("root").ok_or("it has no rule \"root\"")?;
    for (name, rule) in &rules {
        each_rule(rule, &mut |below| match rules.contains_key(below) {
            true => Ok(()),
            false => Err(format!("there is no rule {below:?}, which rule {name:?} has")),
        })?;
    }
    let recursive = recursive(&rules)?;
    match recursive.is_empty() {
        true => Ok(Lowered::Regex(regex(root, &rules)?)),
        false => Ok(Lowered::Lark(lexemes::lark(&rules, &recursive)?)),
    }
}

/// Calls `f` with the names of the rules in an expression.
fn each_rule<'a>(expr: &'a Expr, f: &mut impl FnMut(&'a str) -> Result<(), String>) -> Result<(), String> {
    match expr {
        Expr::Alt(list) | Expr::Seq(list) => list.iter().try_for_each(|expr| each_rule(expr, f)),
        Expr::Character(_) => Ok(()),
        Expr::Rule(name) => f(name),
        Expr::Repeat(expr, ..) => each_rule(expr, f),
    }
}

/// The rules that have themselves inside, or one that does. Refuses what a recursive function would need too much stack for.
fn recursive(rules: &Rules) -> Result<HashSet<&str>, String> {
    let mut known = Known::new();
    for (name, rule) in rules {
        if !known.contains_key(&**name) {
            visit(name, rule, rules, &mut known, 0)?;
        }
    }
    Ok(known
        .into_iter()
        .filter(|(_, rule)| rule.is_none_or(|rule| rule.recursive))
        .map(|(name, _)| name)
        .collect())
}

/// What has been found of rules; nothing while what they have inside is looked at.
type Known<'a> = BTreeMap<&'a str, Option<Visited>>;

#[derive(Clone, Copy)]
struct Visited {
    recursive: bool,
    depth: usize,
}

/// Visits a rule that is `above` deep inside of others.
fn visit<'a>(
    name: &'a str,
    rule: &'a Expr,
    rules: &'a Rules,
    known: &mut Known<'a>,
    above: usize,
) -> Result<Visited, String> {
    known.insert(name, None);
    let found = visit_part(rule, rules, known, above)?;
    known.insert(name, Some(found));
    Ok(found)
}

fn visit_part<'a>(
    expr: &'a Expr,
    rules: &'a Rules,
    known: &mut Known<'a>,
    above: usize,
) -> Result<Visited, String> {
    let mut found = Visited { recursive: false, depth: 0 };
    let mut add = |part: Visited| {
        found.recursive |= part.recursive;
        found.depth = found.depth.max(part.depth);
    };
    if above < MAX_DEPTH {
        match expr {
            Expr::Character(_) => {}
            Expr::Alt(list) | Expr::Seq(list) => {
                for expr in list {
                    add(visit_part(expr, rules, known, above + 1)?);
                }
            }
            Expr::Repeat(expr, ..) => add(visit_part(expr, rules, known, above + 1)?),
            Expr::Rule(name) => match (known.get(&**name), rules.get_key_value(name)) {
                // Itself, or one in the middle of which it is: either has itself inside.
                (Some(None), _) => add(Visited { recursive: true, depth: 0 }),
                (Some(&Some(rule)), _) => add(rule),
                (None, Some((name, rule))) => add(visit(name, rule, rules, known, above + 1)?),
                (None, None) => {}
            },
        }
    }
    found.depth += 1;
    match above + found.depth > MAX_DEPTH {
        true => Err(format!("its parts are nested more than {MAX_DEPTH} deep")),
        false => Ok(found),
    }
}

/// The regular expression of an expression without recursion.
fn regex(expr: &Expr, rules: &Rules) -> Result<String, String> {
    let mut out = String::new();
    write_regex(expr, rules, &mut out)?;
    Ok(out)
}

fn write_regex(expr: &Expr, rules: &Rules, out: &mut String) -> Result<(), String> {
    if out.len() > MAX_BYTES {
        return Err(too_large());
    }
    match expr {
        Expr::Alt(list) => {
            out.push_str("(?:");
            for (index, expr) in list.iter().enumerate() {
                if index > 0 {
                    out.push('|');
                }
                write_regex(expr, rules, out)?;
            }
            out.push(')');
        }
        Expr::Seq(list) => list.iter().try_for_each(|expr| write_regex(expr, rules, out))?,
        Expr::Character(chars) => out.push_str(&chars.regex()),
        Expr::Rule(name) => rules.get(name).map_or(Ok(()), |rule| write_regex(rule, rules, out))?,
        Expr::Repeat(expr, least, most) => {
            out.push_str("(?:");
            write_regex(expr, rules, out)?;
            out.push(')');
            out.push_str(&times(*least, *most));
        }
    }
    Ok(())
}

fn too_large() -> String {
    format!("it is too large: more than {MAX_BYTES} bytes with rules replaced")
}

/// As regular expressions and Lark say it.
fn times(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
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

    fn rules(mut self) -> Result<Rules, String> {
        let mut rules = Rules::new();
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
                    Expr::Character(Chars::all())
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
            let (least, most) = match self.peek() {
                Some(c @ ('*' | '+' | '?')) => {
                    self.at += 1;
                    (u32::from(c == '+'), (c == '?').then_some(1))
                }
                Some('{') => self.times()?,
                _ => return Ok(expr),
            };
            expr = Expr::Repeat(Box::new(expr), least, most);
        }
    }

    /// `{least}`, `{least,}` or `{least,most}`.
    fn times(&mut self) -> Result<(u32, Option<u32>), String> {
        let Some(end) = self.text[self.at..].find('}').map(|end| self.at + end) else {
            return self.error("a { is not closed");
        };
        let times = self.text[self.at + 1..end].replace([' ', '\t'], "");
        let number = |n: &str| n.bytes().all(|b| b.is_ascii_digit()).then(|| n.parse::<u32>().ok()).flatten();
        let number = |n: &str| number(n).filter(|&n| n < 100_000);
        let parsed = match times.split_once(',') {
            None => number(&times).map(|n| (n, Some(n))),
            Some((least, "")) => number(least).map(|least| (least, None)),
            Some((least, most)) => number(least).zip(number(most).map(Some)),
        };
        let Some((least, most)) = parsed.filter(|&(least, most)| most.is_none_or(|most| least <= most))
        else {
            return self.error(format!("{{{times}}} is no number of times"));
        };
        self.at = end + 1;
        Ok((least, most))
    }

    fn literal(&mut self) -> Result<Expr, String> {
        self.at += 1;
        let mut list = Vec::new();
        while !self.take("\"") {
            let c = self.character()?;
            list.push(Expr::Character(Chars::of([(c, c)])));
        }
        Ok(Expr::Seq(list))
    }

    fn class(&mut self) -> Result<Expr, String> {
        self.at += 1;
        let not = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            let (first, mut last) = (self.character()?, None);
            if self.text[self.at..].starts_with('-') && !self.text[self.at + 1..].starts_with(']') {
                self.at += 1;
                last = Some(self.character()?);
            }
            let last = last.unwrap_or(first);
            if last < first {
                return self.error(format!("the range {first:?}-{last:?} descends"));
            }
            ranges.push((first, last));
        }
        let empty = ranges.is_empty();
        let chars = if not { Chars::of(ranges).others() } else { Chars::of(ranges) };
        if empty || chars.is_empty() {
            return self.error("a class of characters is empty");
        }
        Ok(Expr::Character(chars))
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

#[cfg(test)]
mod tests;

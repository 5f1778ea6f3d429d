//! Grammars with recursion against a recognizer that tries everything.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::{Begin, Constraint, Grammar};
use super::*;

/// Whether a grammar has a text: from its definition, for each rule and place all ends, until there are no more.
struct Recognizer<'a> {
    rules: Rules,
    text: &'a [char],
    ends: BTreeMap<(String, usize), BTreeSet<usize>>,
}

impl Recognizer<'_> {
    fn accepts(grammar: &str, text: &str) -> bool {
        let rules = Parser { text: grammar, at: 0 }.rules().unwrap();
        let text: Vec<char> = text.chars().collect();
        let mut this = Recognizer { rules, text: &text, ends: BTreeMap::new() };
        loop {
            let before: usize = this.ends.values().map(BTreeSet::len).sum();
            for (name, rule) in this.rules.clone() {
                for at in 0..=text.len() {
                    let found = this.after(&rule, at);
                    this.ends.entry((name.clone(), at)).or_default().extend(found);
                }
            }
            if this.ends.values().map(BTreeSet::len).sum::<usize>() == before {
                return this.ends[&("root".to_owned(), 0)].contains(&text.len());
            }
        }
    }

    fn after(&self, expr: &Expr, at: usize) -> BTreeSet<usize> {
        match expr {
            Expr::Alt(list) => list.iter().flat_map(|expr| self.after(expr, at)).collect(),
            Expr::Seq(list) => list.iter().fold(BTreeSet::from([at]), |from, expr| {
                from.into_iter().flat_map(|at| self.after(expr, at)).collect()
            }),
            Expr::Character(chars) => {
                let fits = |&c: &char| Chars::of([(c, c)]).meets(chars);
                self.text.get(at).filter(|c| fits(c)).map(|_| at + 1).into_iter().collect()
            }
            Expr::Rule(name) => self.ends.get(&(name.clone(), at)).cloned().unwrap_or_default(),
            Expr::Repeat(expr, least, most) => {
                let (mut from, mut found) = (BTreeSet::from([at]), BTreeSet::new());
                // More times than characters lead nowhere new.
                for times in 0..=most.unwrap_or(u32::MAX).min(*least + self.text.len() as u32 + 1) {
                    if times >= *least {
                        found.extend(&from);
                    }
                    from = from.into_iter().flat_map(|at| self.after(expr, at)).collect();
                }
                found
            }
        }
    }
}

fn admits(grammar: &str, text: &str) -> bool {
    let grammar = Grammar::Gbnf(grammar.to_owned());
    Constraint { grammar, begin: Begin::Now }.admits(text).unwrap()
}

/// A part of a rule of three.
fn part() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        3 => "[ab]{1,2}".prop_map(|text| format!("\"{text}\"")),
        2 => prop_oneof![Just("[ab]"), Just("[^a]"), Just("[b-c]")].prop_map(str::to_owned),
        3 => prop_oneof![Just("root"), Just("x"), Just("y")].prop_map(str::to_owned),
        1 => Just("\"\"".to_owned()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let times = prop_oneof![Just("*"), Just("+"), Just("?"), Just("{2}"), Just("{1,2}"), Just("{0,2}")];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 1..4).prop_map(|list| format!("({})", list.join(" "))),
            proptest::collection::vec(inner.clone(), 1..3).prop_map(|list| format!("({})", list.join(" | "))),
            (inner, times).prop_map(|(part, times)| format!("({part}){times}")),
        ]
    })
}

/// Texts of up to four of three characters.
fn texts() -> Vec<String> {
    let mut texts = vec![String::new()];
    for from in 0.. {
        if texts[from].len() == 4 {
            return texts;
        }
        texts.extend(["a", "b", "c"].map(|c| texts[from].clone() + c));
    }
    texts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever its lexemes are, a grammar has the texts that it has as one of characters.
    #[test]
    fn no_text_is_lost_and_none_is_won(root in part(), x in part(), y in part()) {
        // Some text ends every rule, so that each has one.
        let grammar = format!("root ::= {root} | \"a\"\nx ::= {x} | \"b\"\ny ::= \"c\" y | {y} | \"c\"");
        for text in texts() {
            let expected = Recognizer::accepts(&grammar, &text);
            prop_assert_eq!(admits(&grammar, &text), expected, "{}\n{:?}", grammar, text);
        }
    }
}

/// JSON as people write it in GBNF.
const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,4})? ws
ws     ::= ([ \t\n] ws)?
"#;

#[test]
fn json_is_a_grammar_of_lexemes() {
    let Lowered::Lark(lark) = lower(JSON).unwrap() else { panic!("recursive") };
    // What is between quotes is one lexeme, and words are.
    for lexeme in [r"\x{5D}-\x{7E}", r"/(?:\x{74}\x{72}\x{75}\x{65}|"] {
        assert!(lark.contains(lexeme), "{lexeme}\n{lark}");
    }
    for text in [
        "{}",
        "{ }\n",
        r#"{"a": [1, -0.5e+3, {"b": "\u00e9\\ é"}], "": null , "c":true}"#,
        r#"{"numbers": [0, 10, 123456, 1E5, 0.25]}"#,
    ] {
        assert!(admits(JSON, text), "{text}");
        assert!(serde_json::from_str::<serde_json::Value>(text).is_ok());
    }
    for text in [
        "",
        "{",
        "[]",
        "{\"a\"}",
        "{\"a\": 01}",
        "{\"a\": truefalse}",
        "{\"a\": \"\n\"}",
        "{,}",
        "{\"a\": 1,}",
    ] {
        assert!(!admits(JSON, text), "{text}");
    }
}

#[test]
fn words_of_the_language_are_told_from_names() {
    // A name may begin as a word does, and a word may be one.
    let grammar = "root ::= sum\nsum ::= term (\" + \" term)*\nterm ::= \"if\" | name | \"(\" sum \")\"\nname ::= [a-z]+ [0-9]*";
    for text in ["if", "iffy", "i", "a1 + (if + b)", "(((x)))", "a0 + a"] {
        assert!(admits(grammar, text) && Recognizer::accepts(grammar, text), "{text}");
    }
    for text in ["If", "a +b", "()", "1a", "a1a", "(a", "a + "] {
        assert!(!admits(grammar, text) && !Recognizer::accepts(grammar, text), "{text}");
    }
}

#[test]
fn a_character_may_be_two_lexemes_at_once() {
    // After the first "a", which [ab] is too, may come a lexeme of several "a" or another [ab].
    let grammar =
        "root ::= (\"a\" x | [ab]*) | \"a\"\nx ::= (y \"b\")* | \"b\"\ny ::= \"c\" y | (\"a\"*) | \"c\"";
    for text in texts() {
        assert_eq!(admits(grammar, &text), Recognizer::accepts(grammar, &text), "{text:?}");
    }
}

#[test]
fn grammars_that_ask_for_too_much_are_refused() {
    // Each rule is twice the one below it, and the last one nothing.
    let twice = |last: &str| {
        let rules: Vec<_> = (0..60).map(|n| format!("r{n} ::= r{} r{}", n + 1, n + 1)).collect();
        format!("root ::= root \"a\" | r0\n{}\nr60 ::= {last}", rules.join("\n"))
    };
    let chain: Vec<_> = (0..9000).map(|n| format!("r{n} ::= r{}", n + 1)).collect();
    let chain = format!("root ::= r0\n{}\nr9000 ::= \"a\"", chain.join("\n"));
    let many: Vec<_> = (0..9000).map(|n| format!("\"a{n}\" root \"b{n}\"")).collect();
    let many = format!("root ::= \"x\" | {}", many.join(" | "));
    for (grammar, what) in [
        (chain.as_str(), "nested more than 800 deep"),
        (&many, "too complex"),
        ("root ::= root", ""),
        ("root ::= \"a\" root", ""),
        ("root ::= \"(\" root \")\" | x\nx ::= x", ""),
    ] {
        let constraint = Constraint { grammar: Grammar::Gbnf(grammar.to_owned()), begin: Begin::Now };
        let error = constraint.check().map_err(|error| error.to_string());
        if what.is_empty() {
            // Without a sentence: refused, or nothing can come of it.
            assert!(error.is_err() || !constraint.admits("a").unwrap_or(false), "{grammar}");
        } else {
            assert!(error.as_ref().is_err_and(|error| error.contains(what)), "{error:?}");
        }
    }
    for last in ["\"\"", "\"a\""] {
        let grammar = Grammar::Gbnf(twice(last));
        // In time, whatever the answer is.
        let _ = Constraint { grammar, begin: Begin::Now }.check();
    }
}

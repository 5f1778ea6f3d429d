//! A recursive grammar of characters as one of lexemes.
//!
//! llguidance's lexer takes the longest text that a lexeme of those that may come next can be: where a shorter one would have
//! been right, the text is lost. So parts of the grammar without recursion become lexemes only if that cannot happen, and
//! otherwise fall into smaller parts, at the end into characters, which are all of one length. A lexeme loses nothing if
//!
//! - what can follow it does not begin with what could go on in it, and
//! - no two lexemes that may come next begin with the same character, but for two that are single characters.
//!
//! What may come next is found by subsets: after each lexeme the union of what follows the places that it may have been at, and after a
//! single character that of every one that it may have been.
//! (A rule's end is followed by what follows the rule anywhere, so this is more than what really may come next.) How a lexeme can go
//! on is found by Glushkov's automaton of its expression, which has to be deterministic.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write;

use super::chars::Chars;
use super::{Expr, MAX_BYTES, Rules, regex, times, too_large};

/// Most characters that a lexeme's expression may have, with repetitions written out.
const MAX_POSITIONS: usize = 512;
/// Most steps that a grammar may take: parts that are looked at, places that are put into sets, comparisons.
const MAX_STEPS: usize = 20_000_000;

/// Steps that are left.
struct Steps(usize);

impl Steps {
    fn take(&mut self, count: usize) -> Result<(), String> {
        self.0 = self.0.checked_sub(count + 1).ok_or("it is too complex")?;
        Ok(())
    }
}

/// The grammar in llguidance's dialect of Lark. `recursive` are the rules that are no regular expressions.
pub(super) fn lark(rules: &Rules, recursive: &HashSet<&str>) -> Result<String, String> {
    let mut broken = HashSet::new();
    let mut steps = Steps(MAX_STEPS);
    loop {
        let grammar = Grammar::new(rules, recursive, &broken, &mut steps)?;
        let lossy = grammar.lossy(&mut steps)?;
        if lossy.is_empty() {
            return grammar.lark();
        }
        // Each time there are fewer or smaller lexemes, so there is an end to it.
        broken.extend(lossy);
    }
}

/// What is known of a lexeme.
struct Lexeme {
    regex: String,
    first: Chars,
    /// What can go on behind a whole one.
    beyond: Chars,
    single: bool,
}

/// A part of a rule.
enum Node {
    Lexeme(usize),
    Seq(Vec<usize>),
    Alt(Vec<usize>),
    Repeat(usize, u32, Option<u32>),
    /// The rule's number.
    Rule(usize),
}

struct Grammar<'a> {
    rules: &'a Rules,
    recursive: &'a HashSet<&'a str>,
    broken: &'a HashSet<String>,
    lexemes: Vec<Lexeme>,
    /// Lexemes by what they are.
    known: HashMap<String, usize>,
    nodes: Vec<Node>,
    /// Numbers of the rules that are asked for, and the nodes that they are.
    numbers: BTreeMap<&'a str, usize>,
    roots: Vec<usize>,
}

impl<'a> Grammar<'a> {
    fn new(
        rules: &'a Rules,
        recursive: &'a HashSet<&'a str>,
        broken: &'a HashSet<String>,
        steps: &mut Steps,
    ) -> Result<Self, String> {
        let (lexemes, known, nodes) = (Vec::new(), HashMap::new(), Vec::new());
        let (numbers, roots) = (BTreeMap::new(), Vec::new());
        let mut grammar = Grammar { rules, recursive, broken, lexemes, known, nodes, numbers, roots };
        let mut asked = Vec::new();
        grammar.number("root", &mut asked);
        while let Some(name) = asked.pop() {
            if let Some(rule) = rules.get(name) {
                let root = grammar.node(rule, &mut asked, steps)?;
                let number = grammar.number(name, &mut asked);
                grammar.roots[number] = root;
            }
        }
        Ok(grammar)
    }

    /// Number of a rule, which is asked for with its first use.
    fn number(&mut self, name: &'a str, asked: &mut Vec<&'a str>) -> usize {
        let next = self.roots.len();
        *self.numbers.entry(name).or_insert_with(|| {
            asked.push(name);
            self.roots.push(usize::MAX);
            next
        })
    }

    fn push(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn node(&mut self, expr: &'a Expr, asked: &mut Vec<&'a str>, steps: &mut Steps) -> Result<usize, String> {
        if let Some(lexeme) = self.lexeme(expr, steps)? {
            return Ok(self.push(Node::Lexeme(lexeme)));
        }
        let node = match expr {
            Expr::Alt(list) | Expr::Seq(list) => {
                let parts = list.iter().map(|expr| self.node(expr, asked, steps));
                let parts = parts.collect::<Result<Vec<_>, _>>()?;
                if matches!(expr, Expr::Alt(_)) { Node::Alt(parts) } else { Node::Seq(parts) }
            }
            // A lexeme has at least one character: what may be nothing is a lexeme that may be left out.
            &Expr::Repeat(ref inner, 0, most) if most != Some(0) => {
                let some = match most {
                    Some(1) => (**inner).clone(),
                    _ => Expr::Repeat(inner.clone(), 1, most),
                };
                match self.lexeme(&some, steps)? {
                    Some(lexeme) => Node::Repeat(self.push(Node::Lexeme(lexeme)), 0, Some(1)),
                    None => Node::Repeat(self.node(inner, asked, steps)?, 0, most),
                }
            }
            Expr::Repeat(inner, least, most) => Node::Repeat(self.node(inner, asked, steps)?, *least, *most),
            Expr::Rule(name) => Node::Rule(self.number(name, asked)),
            // Always a lexeme.
            Expr::Character(_) => Node::Seq(Vec::new()),
        };
        Ok(self.push(node))
    }

    /// Whether an expression is a regular one.
    fn is_regular(&self, expr: &Expr) -> bool {
        super::each_rule(expr, &mut |name| match self.recursive.contains(name) {
            true => Err(String::new()),
            false => Ok(()),
        })
        .is_ok()
    }

    /// The lexeme that an expression can be.
    fn lexeme(&mut self, expr: &Expr, steps: &mut Steps) -> Result<Option<usize>, String> {
        if !self.is_regular(expr) {
            return Ok(None);
        }
        let mut automaton = Automaton::default();
        let part = automaton.part(expr, self.rules);
        steps.take(automaton.visited + automaton.follow.iter().map(BTreeSet::len).sum::<usize>())?;
        let Some(part) = part else { return Ok(None) };
        if part.empty || part.first.is_empty() || !automaton.is_deterministic(&part.first) {
            return Ok(None);
        }
        let single = automaton.chars.len() == 1 && automaton.follow[0].is_empty();
        let regex = regex(expr, self.rules)?;
        if !single && self.broken.contains(&regex) {
            return Ok(None);
        }
        if let Some(&known) = self.known.get(&regex) {
            return Ok(Some(known));
        }
        let beyond = part.last.iter().flat_map(|&last| &automaton.follow[last]);
        let beyond = automaton.union(beyond);
        let first = automaton.union(&part.first);
        self.lexemes.push(Lexeme { regex: regex.clone(), first, beyond, single });
        self.known.insert(regex, self.lexemes.len() - 1);
        Ok(Some(self.lexemes.len() - 1))
    }

    /// Lexemes that may lose a text.
    fn lossy(&self, steps: &mut Steps) -> Result<HashSet<String>, String> {
        let places = Places::of(self, steps)?;
        let mut lossy = HashSet::new();
        let mut sets = vec![places.first[self.roots[0]].clone()];
        let mut seen: HashSet<BTreeSet<usize>> = sets.iter().cloned().collect();
        while let Some(set) = sets.pop() {
            // Places of the set by their lexeme.
            let mut by_lexeme: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for &place in &set {
                if let Node::Lexeme(lexeme) = self.nodes[place] {
                    by_lexeme.entry(lexeme).or_default().push(place);
                }
            }
            steps.take(set.len() + by_lexeme.len() * by_lexeme.len())?;
            self.look_for_twins(&by_lexeme, &mut lossy);
            for &lexeme in by_lexeme.keys() {
                // A character may be several of the single ones at once: what follows any of them may come next.
                let mut next = BTreeSet::new();
                for (&other, at) in &by_lexeme {
                    let (a, b) = (&self.lexemes[lexeme], &self.lexemes[other]);
                    if lexeme != other && !(a.single && b.single && a.first.meets(&b.first)) {
                        continue;
                    }
                    for &place in at {
                        steps.take(places.follow[place].len())?;
                        next.extend(&places.follow[place]);
                    }
                }
                let goes_on = |&place: &usize| match self.nodes[place] {
                    Node::Lexeme(next) => self.lexemes[lexeme].beyond.meets(&self.lexemes[next].first),
                    _ => false,
                };
                if next.iter().any(goes_on) {
                    lossy.insert(self.lexemes[lexeme].regex.clone());
                }
                if seen.insert(next.clone()) {
                    sets.push(next);
                }
            }
        }
        Ok(lossy)
    }

    /// Of lexemes that may come next, those that begin as another one does.
    fn look_for_twins(&self, by_lexeme: &BTreeMap<usize, Vec<usize>>, lossy: &mut HashSet<String>) {
        let list: Vec<&Lexeme> = by_lexeme.keys().map(|&lexeme| &self.lexemes[lexeme]).collect();
        for (index, a) in list.iter().enumerate() {
            for b in &list[index + 1..] {
                if !(a.single && b.single) && a.first.meets(&b.first) {
                    lossy.extend([a, b].into_iter().filter(|of| !of.single).map(|of| of.regex.clone()));
                }
            }
        }
    }

    fn lark(&self) -> Result<String, String> {
        let mut out = String::from("start: r0\n");
        for (number, &root) in self.roots.iter().enumerate() {
            let _ = write!(out, "r{number}: ");
            self.write(root, &mut out)?;
            out.push('\n');
        }
        Ok(out)
    }

    fn write(&self, node: usize, out: &mut String) -> Result<(), String> {
        if out.len() > MAX_BYTES {
            return Err(too_large());
        }
        match &self.nodes[node] {
            Node::Lexeme(lexeme) => {
                let _ = write!(out, "/{}/", self.lexemes[*lexeme].regex);
            }
            Node::Seq(list) | Node::Alt(list) => {
                let between = if matches!(self.nodes[node], Node::Alt(_)) { " | " } else { " " };
                out.push_str(if list.is_empty() { "\"\"" } else { "(" });
                for (index, &part) in list.iter().enumerate() {
                    out.push_str(if index > 0 { between } else { "" });
                    self.write(part, out)?;
                }
                out.push_str(if list.is_empty() { "" } else { ")" });
            }
            Node::Repeat(_, _, Some(0)) => out.push_str("\"\""),
            Node::Repeat(part, least, most) => {
                out.push('(');
                self.write(*part, out)?;
                out.push(')');
                out.push_str(&times(*least, *most));
            }
            Node::Rule(number) => {
                let _ = write!(out, "r{number}");
            }
        }
        Ok(())
    }
}

/// Of each node, whether it may be nothing, the lexemes' places that it may begin with, and those that may follow it.
struct Places {
    empty: Vec<bool>,
    first: Vec<BTreeSet<usize>>,
    follow: Vec<BTreeSet<usize>>,
}

impl Places {
    fn of(grammar: &Grammar<'_>, steps: &mut Steps) -> Result<Places, String> {
        let count = grammar.nodes.len();
        let none = vec![BTreeSet::new(); count];
        let mut places = Places { empty: vec![false; count], first: none.clone(), follow: none };
        let mut changed = true;
        while changed {
            changed = false;
            for node in 0..count {
                changed |= places.begin(grammar, node);
                steps.take(places.first[node].len())?;
            }
        }
        changed = true;
        while changed {
            changed = false;
            for node in (0..count).rev() {
                changed |= places.go_on(grammar, node);
                steps.take(places.follow[node].len())?;
            }
        }
        Ok(places)
    }

    /// Learns how a node begins from its parts; true if that was more than before.
    fn begin(&mut self, grammar: &Grammar<'_>, node: usize) -> bool {
        let mut first = BTreeSet::new();
        let empty = match &grammar.nodes[node] {
            Node::Lexeme(_) => {
                first.insert(node);
                false
            }
            Node::Seq(parts) => {
                let end = parts.iter().position(|&part| !self.empty[part]);
                for &part in &parts[..end.map_or(parts.len(), |end| end + 1)] {
                    first.extend(&self.first[part]);
                }
                end.is_none()
            }
            Node::Alt(parts) => {
                parts.iter().for_each(|&part| first.extend(&self.first[part]));
                parts.iter().any(|&part| self.empty[part])
            }
            Node::Repeat(_, _, Some(0)) => true,
            &Node::Repeat(part, least, _) => {
                first.clone_from(&self.first[part]);
                least == 0 || self.empty[part]
            }
            &Node::Rule(number) => {
                let root = grammar.roots[number];
                first.clone_from(&self.first[root]);
                self.empty[root]
            }
        };
        let changed = empty != self.empty[node] || first.len() != self.first[node].len();
        (self.empty[node], self.first[node]) = (empty, first);
        changed
    }

    /// Tells the parts of a node what follows them; true if that was new.
    fn go_on(&mut self, grammar: &Grammar<'_>, node: usize) -> bool {
        let mut follow = self.follow[node].clone();
        match &grammar.nodes[node] {
            Node::Lexeme(_) | Node::Repeat(_, _, Some(0)) => false,
            Node::Seq(parts) => {
                let mut changed = false;
                for &part in parts.iter().rev() {
                    changed |= self.tell(part, &follow);
                    if !self.empty[part] {
                        follow.clear();
                    }
                    follow.extend(&self.first[part]);
                }
                changed
            }
            Node::Alt(parts) => parts.iter().fold(false, |changed, &part| self.tell(part, &follow) | changed),
            &Node::Repeat(part, _, most) => {
                if most != Some(1) {
                    follow.extend(&self.first[part]);
                }
                self.tell(part, &follow)
            }
            &Node::Rule(number) => self.tell(grammar.roots[number], &follow),
        }
    }

    fn tell(&mut self, node: usize, follow: &BTreeSet<usize>) -> bool {
        let before = self.follow[node].len();
        self.follow[node].extend(follow);
        self.follow[node].len() > before
    }
}

/// Glushkov's automaton: a state for each character of the expression.
#[derive(Default)]
struct Automaton {
    chars: Vec<Chars>,
    follow: Vec<BTreeSet<usize>>,
    /// Parts that have been visited.
    visited: usize,
}

/// Part of an expression: whether it may be nothing, and the states that it may begin and end with.
#[derive(Clone, Default)]
struct Part {
    empty: bool,
    first: BTreeSet<usize>,
    last: BTreeSet<usize>,
}

impl Automaton {
    /// `None` if the expression is too large.
    fn part(&mut self, expr: &Expr, rules: &Rules) -> Option<Part> {
        self.visited += 1;
        if self.chars.len() >= MAX_POSITIONS || self.visited > 16 * MAX_POSITIONS {
            return None;
        }
        match expr {
            Expr::Character(chars) => {
                self.chars.push(chars.clone());
                self.follow.push(BTreeSet::new());
                let own = BTreeSet::from([self.chars.len() - 1]);
                Some(Part { empty: false, first: own.clone(), last: own })
            }
            Expr::Rule(name) => self.part(rules.get(name)?, rules),
            Expr::Seq(list) => {
                let mut all = Part { empty: true, ..Part::default() };
                for expr in list {
                    let next = self.part(expr, rules)?;
                    all = self.join(all, next);
                }
                Some(all)
            }
            Expr::Alt(list) => {
                let mut all = Part::default();
                for expr in list {
                    let one = self.part(expr, rules)?;
                    all.empty |= one.empty;
                    all.first.extend(one.first);
                    all.last.extend(one.last);
                }
                Some(all)
            }
            Expr::Repeat(expr, least, most) => self.repeat(expr, *least, *most, rules),
        }
    }

    fn repeat(&mut self, expr: &Expr, least: u32, most: Option<u32>, rules: &Rules) -> Option<Part> {
        let mut all = Part { empty: true, ..Part::default() };
        // Of a bounded one, copies that come one after the other, each only behind the one before.
        let mut ends = Part { empty: least == 0, ..Part::default() };
        let copies = most.unwrap_or(least.max(1));
        for copy in 1..=copies {
            let next = self.part(expr, rules)?;
            if most.is_none() && copy == copies {
                self.connect(&next.last, &next.first);
            }
            all = self.join(all, next);
            if copy >= least {
                ends.empty |= all.empty;
                ends.last.extend(&all.last);
            }
        }
        Some(Part { empty: ends.empty, first: all.first, last: ends.last })
    }

    fn connect(&mut self, from: &BTreeSet<usize>, to: &BTreeSet<usize>) {
        from.iter().for_each(|&state| self.follow[state].extend(to));
    }

    /// One part and another behind it.
    fn join(&mut self, mut before: Part, after: Part) -> Part {
        self.connect(&before.last, &after.first);
        if before.empty {
            before.first.extend(&after.first);
        }
        if !after.empty {
            before.last.clear();
        }
        before.last.extend(after.last);
        before.empty &= after.empty;
        before
    }

    /// Whether no two states that may come next have a character in common.
    fn is_deterministic(&self, first: &BTreeSet<usize>) -> bool {
        let apart = |states: &BTreeSet<usize>| {
            let mut all = Chars::default();
            states.iter().all(|&state| {
                let new = !all.meets(&self.chars[state]);
                all.add(&self.chars[state]);
                new
            })
        };
        apart(first) && self.follow.iter().all(apart)
    }

    fn union<'s>(&self, states: impl IntoIterator<Item = &'s usize>) -> Chars {
        let mut all = Chars::default();
        states.into_iter().for_each(|&state| all.add(&self.chars[state]));
        all
    }
}

//! Sets of characters.

use std::fmt::Write;

/// The surrogates, which are no characters.
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);

/// A set of characters: ranges of code points, ends included, ascending, with others between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Chars(Vec<(u32, u32)>);

impl Chars {
    /// The characters of ranges, ends included.
    pub(super) fn of(ranges: impl IntoIterator<Item = (char, char)>) -> Self {
        Chars::merged(ranges.into_iter().map(|(first, last)| (first as u32, last as u32)).collect())
    }

    /// Every character.
    pub(super) fn all() -> Self {
        Chars(vec![(0, SURROGATES.0 - 1), (SURROGATES.1 + 1, char::MAX as u32)])
    }

    /// Every character that is not one of these.
    pub(super) fn others(&self) -> Self {
        let mut others = Vec::new();
        let mut from = 0;
        let with_surrogates = Chars::merged(self.0.iter().copied().chain([SURROGATES]).collect());
        for &(first, last) in &with_surrogates.0 {
            if from < first {
                others.push((from, first - 1));
            }
            from = last + 1;
        }
        if from <= char::MAX as u32 {
            others.push((from, char::MAX as u32));
        }
        Chars(others)
    }

    fn merged(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Chars(merged)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the characters of another set.
    pub(super) fn add(&mut self, other: &Chars) {
        if !other.is_empty() {
            *self = Chars::merged(self.0.iter().chain(&other.0).copied().collect());
        }
    }

    /// Whether a character is in both.
    pub(super) fn meets(&self, other: &Chars) -> bool {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            if x.1 < y.0 {
                a.next();
            } else if y.1 < x.0 {
                b.next();
            } else {
                return true;
            }
        }
        false
    }

    /// As a regular expression.
    pub(super) fn regex(&self) -> String {
        let mut out = String::new();
        match self.0[..] {
            [(first, last)] if first == last => drop(write!(out, "\\x{{{first:X}}}")),
            _ => {
                out.push('[');
                for &(first, last) in &self.0 {
                    let _ = write!(out, "\\x{{{first:X}}}");
                    if first < last {
                        let _ = write!(out, "-\\x{{{last:X}}}");
                    }
                }
                out.push(']');
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_the_characters_that_they_are_made_of() {
        let some = Chars::of([('x', 'z'), ('a', 'c'), ('d', 'd'), ('b', 'b')]);
        assert_eq!(some.0, [(0x61, 0x64), (0x78, 0x7A)]);
        assert_eq!(some.others().others(), some);
        assert!(!some.meets(&some.others()) && some.meets(&Chars::all()));
        assert!(some.meets(&Chars::of([('y', 'y')])) && !some.meets(&Chars::of([('e', 'w')])));
        assert_eq!(Chars::default().others(), Chars::all());
        assert!(Chars::all().others().is_empty());
        let mut all = some.clone();
        all.add(&some.others());
        assert_eq!(all.others(), Chars::default());
        assert_eq!(some.regex(), r"[\x{61}-\x{64}\x{78}-\x{7A}]");
        assert_eq!(Chars::of([('/', '/')]).regex(), r"\x{2F}");
    }
}

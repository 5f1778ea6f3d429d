//! Strings in a stream of bytes: those that end a text, and how all are found.

use std::sync::Arc;

/// Looks for strings in a stream of bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Finder {
    patterns: Arc<[Pattern]>,
    /// Bytes of each pattern that the text now ends with.
    matched: Vec<usize>,
}

/// One string, matched as by Knuth, Morris and Pratt: constant work per byte on average, whatever the strings.
#[derive(Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// Length of the longest proper border of each prefix.
    border: Vec<usize>,
}

impl Pattern {
    fn new(bytes: Vec<u8>) -> Self {
        let mut pattern = Pattern { border: vec![0; bytes.len()], bytes };
        let mut matched = 0;
        for i in 1..pattern.bytes.len() {
            pattern.push(&mut matched, pattern.bytes[i]);
            pattern.border[i] = matched;
        }
        pattern
    }

    fn push(&self, matched: &mut usize, byte: u8) {
        while *matched > 0 && self.bytes[*matched] != byte {
            *matched = self.border[*matched - 1];
        }
        *matched += usize::from(self.bytes[*matched] == byte);
    }
}

impl Finder {
    /// For strings that are not empty.
    pub(crate) fn new(strings: &[Vec<u8>]) -> Self {
        Finder {
            patterns: strings.iter().cloned().map(Pattern::new).collect(),
            matched: vec![0; strings.len()],
        }
    }

    /// Whether there is nothing to look for.
    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Takes a byte. Gives index and length of the strings that end with it; after one, nothing more may come.
    pub(crate) fn push(&mut self, byte: u8) -> impl Iterator<Item = (usize, usize)> {
        for (pattern, matched) in self.patterns.iter().zip(&mut self.matched) {
            pattern.push(matched, byte);
        }
        let lengths = self.patterns.iter().map(|pattern| pattern.bytes.len());
        let whole = lengths.zip(&self.matched).map(|(len, matched)| (len, len == *matched));
        whole.enumerate().filter(|(_, (_, whole))| *whole).map(|(index, (len, _))| (index, len))
    }

    /// How many bytes at the end of the text may be the beginning of a string.
    pub(crate) fn undecided(&self) -> usize {
        self.matched.iter().copied().max().unwrap_or(0)
    }
}

/// Withholds bytes that may be the beginning of a stop string. The string that *ends* first wins, of several that end
/// together the longest: so the result does not depend on where the text is cut into tokens.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    finder: Finder,
    held: Vec<u8>,
}

impl StopMatcher {
    /// For strings that are not empty.
    pub fn new(strings: &[Vec<u8>]) -> Self {
        StopMatcher { finder: Finder::new(strings), held: Vec::new() }
    }

    /// Takes the bytes of a token. Gives those that no stop string can claim any more, and the stop string that ended
    /// the text, by index; after one, nothing more may come.
    pub fn push(&mut self, bytes: &[u8]) -> (Vec<u8>, Option<usize>) {
        for &byte in bytes {
            self.held.push(byte);
            if let Some((index, len)) = self.finder.push(byte).max_by_key(|(_, len)| *len) {
                self.held.truncate(self.held.len() - len);
                return (self.finish(), Some(index));
            }
        }
        (self.held.drain(..self.held.len() - self.finder.undecided()).collect(), None)
    }

    /// What was withheld, when the text ends for another reason.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&[u8]]) -> (String, Option<usize>) {
        let stops: Vec<Vec<u8>> = stops.iter().map(|s| s.as_bytes().to_vec()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut text = Vec::new();
        for piece in pieces {
            let (bytes, stopped) = matcher.push(piece);
            text.extend(bytes);
            if stopped.is_some() {
                return (String::from_utf8(text).unwrap(), stopped);
            }
        }
        text.extend(matcher.finish());
        (String::from_utf8(text).unwrap(), None)
    }

    #[test]
    fn examples() {
        assert_eq!(run(&["stop"], &[b"don't s", b"top", b"!"]), ("don't ".into(), Some(0)));
        assert_eq!(run(&["aab"], &[b"a", b"a", b"a", b"b"]), ("a".into(), Some(0)));
        assert_eq!(run(&["\n\n"], &[b"x\n", b"y\n"]), ("x\ny\n".into(), None));
        // Ends first, then longest.
        assert_eq!(run(&["xabc", "ab"], &[b"xabc"]), ("x".into(), Some(1)));
        assert_eq!(run(&["b", "ab"], &[b"xab"]), ("x".into(), Some(1)));
        assert_eq!(run(&[], &[b"x"]), ("x".into(), None));
    }

    #[test]
    fn what_cannot_be_a_stop_is_released_at_once() {
        let mut matcher = StopMatcher::new(&[b"abab!".to_vec()]);
        let mut released = |bytes: &[u8]| matcher.push(bytes).0;
        assert_eq!(released(b"xab"), b"x");
        assert_eq!(released(b"ab"), b"");
        assert_eq!(released(b"a"), b"ab"); // "aba" is still a beginning
        assert_eq!(released(b"c"), b"abac");
    }

    proptest! {
        #[test]
        fn no_cut_changes_the_text(
            text in "[ab]{0,24}",
            stops in proptest::collection::vec("[ab]{1,5}", 0..4),
            cuts in proptest::collection::vec(0usize..25, 0..6),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            // The definition: the shortest prefix that ends with a stop string, without the longest such.
            let ended = (0..=text.len()).find(|&end| stops.iter().any(|stop| text[..end].ends_with(stop)));
            let expected = ended.map_or(text.as_str(), |end| {
                let longest = stops.iter().filter(|stop| text[..end].ends_with(**stop)).map(|stop| stop.len()).max();
                &text[..end - longest.unwrap_or(0)]
            });
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &text.as_bytes()[w[0]..w[1]]).collect();
            let (out, stopped) = run(&stops, &pieces);
            prop_assert_eq!(out.as_str(), expected);
            prop_assert_eq!(stopped.is_some(), ended.is_some());
        }
    }
}

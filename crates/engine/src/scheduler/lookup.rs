//! Prompt lookup: guessing the next tokens from what has been said before.
//!
//! Saxena, "Prompt lookup decoding", 2023: where the last few tokens stand earlier in the text, what followed them there is
//! likely to follow again, as it does in answers that quote or edit their prompt. A guess costs nothing; a step that checks it
//! reads the weights once for all of its tokens.

use crate::executor::TokenId;

/// Tokens that must stand earlier too, at most and at least: the longer, the better the guess.
const LONGEST: usize = 4;
const SHORTEST: usize = 2;

/// Up to `max` tokens that followed the latest earlier occurrence of the longest end of `tokens`.
pub(super) fn guess(tokens: &[TokenId], max: usize) -> &[TokenId] {
    for n in (SHORTEST..=LONGEST.min(tokens.len().saturating_sub(1))).rev() {
        let end = &tokens[tokens.len() - n..];
        let found = tokens[..tokens.len() - 1].windows(n).rposition(|window| window == end);
        if let Some(at) = found {
            let next = at + n;
            return &tokens[next..tokens.len().min(next + max)];
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::guess;

    #[test]
    fn what_followed_the_latest_longest_end_is_guessed() {
        assert_eq!(guess(&[1, 2, 3, 4, 9, 1, 2], 3), [3, 4, 9]);
        assert_eq!(guess(&[1, 2, 3, 4, 9, 1, 2], 1), [3]);
        // The latest one.
        assert_eq!(guess(&[1, 2, 3, 1, 2, 4, 1, 2], 1), [4]);
        // The longer one, though it is earlier.
        assert_eq!(guess(&[7, 1, 2, 3, 1, 2, 4, 7, 1, 2], 1), [3]);
        // It may run into the end itself.
        assert_eq!(guess(&[5, 5, 5], 8), [5]);
        assert_eq!(guess(&[1, 2, 3, 4], 8), [0; 0]);
        assert_eq!(guess(&[], 8), [0; 0]);
        assert_eq!(guess(&[1], 8), [0; 0]);
    }
}

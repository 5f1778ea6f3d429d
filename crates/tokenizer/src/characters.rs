//! Bytes to whole characters.

/// Collects bytes until they are characters. What can never become one is U+FFFD.
#[derive(Debug, Default)]
pub struct Characters {
    /// The beginning of a character, at most three bytes.
    pending: Vec<u8>,
}

impl Characters {
    /// Adds bytes and returns the characters that are now complete.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(e) => {
                    let (valid, invalid) = rest.split_at(e.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = invalid;
                    let Some(len) = e.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = rest.get(len..).unwrap_or_default();
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }

    /// What remains at the end: U+FFFD for the beginning of a character.
    pub fn finish(&mut self) -> String {
        match std::mem::take(&mut self.pending).is_empty() {
            true => String::new(),
            false => char::REPLACEMENT_CHARACTER.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Characters;

    #[test]
    fn characters_come_whole_wherever_they_are_cut() {
        let text = "aé€😀\u{fffd}z".as_bytes();
        for cut in 0..=text.len() {
            for second in cut..=text.len() {
                let mut c = Characters::default();
                let parts = [&text[..cut], &text[cut..second], &text[second..]];
                let joined: String = parts.iter().map(|part| c.push(part)).collect();
                assert_eq!(joined + &c.finish(), "aé€😀\u{fffd}z");
            }
        }
    }

    #[test]
    fn what_is_no_character_is_replaced() {
        let mut c = Characters::default();
        assert_eq!(c.push(b"a\xffb\xe2\x82"), "a\u{fffd}b");
        assert_eq!(c.push(b"x"), "\u{fffd}x");
        assert_eq!(c.push(b"\xf0\x9f"), "");
        assert_eq!(c.finish(), "\u{fffd}");
        assert_eq!(c.finish(), "");
    }
}

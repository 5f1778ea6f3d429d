//! Text that may not be valid UTF-8.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// A text as byte-pair encoding sees it.
pub(crate) struct Text<'t> {
    /// What rules look at. As long as `bytes`, and the same but for surrogates, which have private-use characters in
    /// their place: no Rust string holds surrogates, and no rule tells the two apart.
    pub(crate) shape: Cow<'t, str>,
    /// What is encoded.
    pub(crate) bytes: Cow<'t, [u8]>,
}

impl Text<'_> {
    /// The text in Unicode's normalization form C. Text with surrogates stays as it is.
    pub(crate) fn nfc(self) -> Self {
        if self.shape.is_ascii() || is_nfc_quick(self.shape.chars()) == IsNormalized::Yes {
            return self;
        }
        if self.shape.as_bytes() != &*self.bytes {
            return self;
        }
        let composed: String = self.shape.nfc().collect();
        Text { bytes: Cow::Owned(composed.clone().into_bytes()), shape: Cow::Owned(composed) }
    }
}

/// Reads text as llama.cpp does: a byte that begins no character, and each byte of a character that is cut off,
/// becomes U+FFFD; characters spelled with more bytes than needed become themselves; surrogates stay. A value above
/// U+10FFFF becomes U+FFFD (llama.cpp fails on it).
pub(crate) fn read(bytes: &[u8]) -> Text<'_> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Text { shape: Cow::Borrowed(text), bytes: Cow::Borrowed(bytes) };
    }
    let mut shape = String::with_capacity(bytes.len() + bytes.len() / 2);
    let mut surrogates = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (value, used) = first_value(rest);
        match value {
            Some(surrogate @ 0xD800..=0xDFFF) => {
                surrogates.push((shape.len(), rest[..used].to_vec()));
                shape.extend(char::from_u32(surrogate - 0xD800 + 0xE000));
            }
            value => shape.push(value.and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER)),
        }
        rest = &rest[used..];
    }
    let mut bytes = shape.clone().into_bytes();
    for (start, surrogate) in surrogates {
        bytes[start..start + surrogate.len()].copy_from_slice(&surrogate);
    }
    Text { shape: Cow::Owned(shape), bytes: Cow::Owned(bytes) }
}

/// The value of the character that `bytes`, which are not empty, begin with, if they begin one, and how many bytes that
/// takes. Longer forms than needed, surrogates and values above U+10FFFF count as characters.
pub(crate) fn first_value(bytes: &[u8]) -> (Option<u32>, usize) {
    let (length, bits) = match bytes[0] {
        lead @ 0x00..=0x7F => (1, lead),
        lead @ 0xC0..=0xDF => (2, lead & 0x1F),
        lead @ 0xE0..=0xEF => (3, lead & 0x0F),
        lead @ 0xF0..=0xF7 => (4, lead & 0x07),
        _ => return (None, 1),
    };
    match bytes.get(1..length).filter(|tail| tail.iter().all(|byte| byte & 0xC0 == 0x80)) {
        Some(tail) => {
            let value = tail.iter().fold(u32::from(bits), |value, byte| value << 6 | u32::from(byte & 0x3F));
            (Some(value), length)
        }
        None => (None, 1),
    }
}

/// Bytes of the character that begins with `lead`, by its high bits alone; 1 for a byte that begins none.
pub(crate) fn char_len(lead: u8) -> usize {
    match lead {
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xFF => 4,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_bytes_become_replacement_characters_one_by_one() {
        let shape = |bytes| read(bytes).shape.into_owned();
        assert_eq!(shape("häß 語".as_bytes()), "häß 語");
        assert_eq!(shape(b"a\xFFb"), "a\u{FFFD}b");
        assert_eq!(shape(b"\xE8\xAA"), "\u{FFFD}\u{FFFD}"); // Cut off: each byte on its own.
        assert_eq!(shape(b"\xE8\xAAz"), "\u{FFFD}\u{FFFD}z");
        assert_eq!(shape(b"\xC1\x81"), "A"); // Overlong.
        assert_eq!(shape(b"\xF7\xBF\xBF\xBF!"), "\u{FFFD}!"); // Above U+10FFFF.
        assert_eq!(shape(b"\x80\xF8"), "\u{FFFD}\u{FFFD}");
    }

    #[test]
    fn surrogates_stay() {
        for surrogate in [b"\xED\xA0\x80", b"\xED\xBF\xBF"] {
            let bytes = [b"a\xFF", &surrogate[..], b"z"].concat();
            let text = read(&bytes);
            assert_eq!(text.bytes, ["a\u{FFFD}".as_bytes(), surrogate, b"z"].concat());
            assert_eq!(text.shape.len(), text.bytes.len());
        }
    }
}

//! Gemma's spelling of arguments: like JSON, with keys without quotes and other quotes around texts.

/// Objects and arrays within one another.
const MAX_DEPTH: usize = 64;

/// The call in `text`, `call:name{…}`, whose texts stand between two `quote`s: name and arguments as JSON.
pub(super) fn call(text: &str, quote: &str) -> Option<(String, String)> {
    let text = text.trim().strip_prefix("call:")?;
    let (name, rest) = text.split_at(text.find('{')?);
    let name = name.trim();
    if name.is_empty() || name.contains(char::is_whitespace) {
        return None;
    }
    let mut reader = Reader { rest, quote, json: String::new() };
    reader.value(0)?;
    reader.rest.trim().is_empty().then(|| (name.to_owned(), reader.json))
}

struct Reader<'t> {
    rest: &'t str,
    quote: &'t str,
    json: String,
}

impl Reader<'_> {
    fn skip(&mut self, sign: char) -> bool {
        let trimmed = self.rest.trim_start();
        match trimmed.strip_prefix(sign) {
            Some(after) => {
                self.rest = after;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.rest = self.rest.trim_start();
        if self.skip('{') {
            self.items('{', '}', depth)
        } else if self.skip('[') {
            self.items('[', ']', depth)
        } else if let Some(text) = self.rest.strip_prefix(self.quote) {
            let (text, after) = text.split_once(self.quote)?;
            self.json.push_str(&serde_json::Value::from(text).to_string());
            self.rest = after;
            Some(())
        } else {
            let end = self.rest.find([',', '}', ']'])?;
            let (word, after) = self.rest.split_at(end);
            let word = word.trim();
            // A number, true, false or null; anything else is a text without its quotes.
            match serde_json::from_str::<serde_json::Value>(word) {
                Ok(_) => self.json.push_str(word),
                Err(_) => self.json.push_str(&serde_json::Value::from(word).to_string()),
            }
            self.rest = after;
            Some(())
        }
    }

    fn items(&mut self, open: char, close: char, depth: usize) -> Option<()> {
        self.json.push(open);
        let mut first = true;
        while !self.skip(close) {
            if !std::mem::take(&mut first) {
                if !self.skip(',') {
                    return None;
                }
                self.json.push(',');
            }
            if open == '{' {
                let (key, after) = self.rest.split_once(':')?;
                let key = key.trim();
                let key =
                    key.strip_prefix(self.quote).and_then(|key| key.strip_suffix(self.quote)).unwrap_or(key);
                self.json.push_str(&serde_json::Value::from(key).to_string());
                self.json.push(':');
                self.rest = after;
            }
            self.value(depth + 1)?;
        }
        self.json.push(close);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_become_json() {
        let found = call("call:f{a:<|\"|>x, \"y\"}<|\"|>,b:[1,-2.5e3,true],c:{d:{},e:null}}", "<|\"|>");
        let expected = r#"{"a":"x, \"y\"}","b":[1,-2.5e3,true],"c":{"d":{},"e":null}}"#;
        assert_eq!(found, Some(("f".to_owned(), expected.to_owned())));
        assert_eq!(call("call:f{a:1", "q"), None);
        assert_eq!(call("call:{a:1}", "q"), None);
        assert_eq!(call(&format!("call:f{}", "{a:".repeat(10_000)), "q"), None);
    }
}

//! Just as much JSON as it takes to find a call in text that is still coming.

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// More text may give one.
    Incomplete,
    /// No text will.
    Malformed,
}

/// The beginning of a call, up to its arguments.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// The arguments begin at this byte.
    Arguments { name: String, at: usize, depth: usize },
    /// The whole object, which ends at this byte.
    Whole { name: String, arguments: String, end: usize },
}

/// A reader of `text` from byte `at` on.
struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    /// The next byte after white space.
    fn peek(&mut self) -> Result<u8, Stop> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_ascii_start().len();
        self.text.as_bytes().get(self.at).copied().ok_or(Stop::Incomplete)
    }

    fn expect(&mut self, byte: u8) -> Result<(), Stop> {
        if self.peek()? != byte {
            return Err(Stop::Malformed);
        }
        self.at += 1;
        Ok(())
    }

    /// A value, as it is spelled. A number is complete when something follows it.
    fn value(&mut self) -> Result<&'t str, Stop> {
        self.peek()?;
        let begin = self.at;
        let mut scan = Scan::default();
        let end = scan.run(&self.text[begin..]);
        match scan.is_done() {
            true if end > 0 => {
                self.at += end;
                Ok(&self.text[begin..self.at])
            }
            true => Err(Stop::Malformed),
            false => Err(Stop::Incomplete),
        }
    }

    fn string(&mut self) -> Result<String, Stop> {
        if self.peek()? != b'"' {
            return Err(Stop::Malformed);
        }
        serde_json::from_str(self.value()?).map_err(|_| Stop::Malformed)
    }
}

/// Reads the beginning of an object `{"name": …, "arguments": …}`; `parameters` is another word for the latter, and the
/// two may stand in an object `function`.
pub(super) fn head(text: &str) -> Result<Head, Stop> {
    let mut reader = Reader { text, at: 0 };
    reader.expect(b'{')?;
    let (mut name, mut arguments) = (None, None);
    let mut depth = 1;
    let mut first = true;
    loop {
        if reader.peek()? == b'}' {
            reader.at += 1;
            depth -= 1;
            if depth > 0 {
                first = false;
                continue;
            }
            let name = name.ok_or(Stop::Malformed)?;
            let arguments = arguments.unwrap_or_else(|| "{}".to_owned());
            return Ok(Head::Whole { name, arguments, end: reader.at });
        }
        if !std::mem::take(&mut first) {
            reader.expect(b',')?;
        }
        let key = reader.string()?;
        reader.expect(b':')?;
        let next = reader.peek()?;
        match key.as_str() {
            "name" if name.is_none() => name = Some(reader.string()?),
            "arguments" | "parameters" if arguments.is_none() => match (&name, next) {
                (Some(name), b'{') => {
                    return Ok(Head::Arguments { name: name.clone(), at: reader.at, depth });
                }
                _ => arguments = Some(unquoted(reader.value()?)),
            },
            "function" if next == b'{' && name.is_none() => {
                reader.at += 1;
                depth += 1;
                first = true;
            }
            _ => {
                reader.value()?;
            }
        }
    }
}

/// Reads what follows the arguments, up to the end of the `depth` objects around them. Returns where that is.
pub(super) fn tail(text: &str, mut depth: usize) -> Result<usize, Stop> {
    let mut reader = Reader { text, at: 0 };
    while depth > 0 {
        match reader.peek()? {
            b'}' => {
                reader.at += 1;
                depth -= 1;
            }
            b',' => {
                reader.at += 1;
                reader.string()?;
                reader.expect(b':')?;
                reader.value()?;
            }
            _ => return Err(Stop::Malformed),
        }
    }
    Ok(reader.at)
}

/// Arguments as a text: some models put the object into a string.
fn unquoted(value: &str) -> String {
    serde_json::from_str::<String>(value).unwrap_or_else(|_| value.to_owned())
}

/// Finds the end of a value by its brackets and quotes. What is within is not checked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    started: bool,
    done: bool,
}

impl Scan {
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Goes on with `text`; returns how much of it belongs to the value.
    pub(super) fn run(&mut self, text: &str) -> usize {
        for (at, byte) in text.bytes().enumerate() {
            let scalar = self.started && self.depth == 0 && !self.in_string;
            match byte {
                _ if self.in_string => {
                    match byte {
                        _ if self.escaped => self.escaped = false,
                        b'\\' => self.escaped = true,
                        b'"' => self.in_string = false,
                        _ => {}
                    }
                    if !self.in_string && self.depth == 0 {
                        self.done = true;
                        return at + 1;
                    }
                }
                // A number or word ends where something else begins.
                b'}' | b']' | b',' | b':' | b'"' | b'{' | b'[' | b' ' | b'\n' | b'\t' | b'\r' if scalar => {
                    self.done = true;
                    return at;
                }
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth == 0 => {
                    self.done = true;
                    return at;
                }
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        self.done = true;
                        return at + 1;
                    }
                }
                _ => {}
            }
            self.started = true;
        }
        text.len()
    }
}

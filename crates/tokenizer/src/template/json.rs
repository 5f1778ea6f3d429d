//! The `tojson` filter as `transformers` has it: Python's `json.dumps` with `ensure_ascii=False`.
//! <https://docs.python.org/3/library/json.html#json.dumps>

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::limits;

/// Arrays and objects within one another. The depth of the template's own data, so generous; the stack is not.
const MAX_DEPTH: usize = 256;

struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    /// Text that one level is indented with, if each item has a line.
    indent: Option<String>,
    between_items: String,
    after_key: String,
}

/// `value | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(value: Value, arguments: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    if arguments.len() > 4 {
        return Err(Error::new(ErrorKind::TooManyArguments, "tojson takes at most four arguments"));
    }
    let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let given = match arguments.get(index) {
            Some(value) => Some(value.clone()),
            None => named.get::<Option<Value>>(name)?,
        };
        Ok(given.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ensure_ascii = argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = argument(1, "indent")?.map(|value| indent(&value)).transpose()?;
    let separators = argument(2, "separators")?;
    let sort_keys = argument(3, "sort_keys")?.is_some_and(|value| value.is_true());
    named.assert_all_used()?;
    let (between_items, after_key) = match separators {
        Some(pair) => self::separators(&pair)?,
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let style = Style { ensure_ascii, sort_keys, indent, between_items, after_key };
    let mut out = String::new();
    write_value(&mut out, &value, &style, 0)?;
    Ok(out)
}

fn indent(value: &Value) -> Result<String, Error> {
    match (value.as_str(), value.as_i64()) {
        // Python takes any text and number; nobody needs more than a line is wide.
        (Some(text), _) if text.len() <= 64 => Ok(text.to_owned()),
        (_, Some(width)) if width <= 64 => Ok(" ".repeat(width.max(0) as usize)),
        _ => Err(invalid("tojson: indent is a text of at most 64 bytes or a number of at most 64")),
    }
}

fn separators(pair: &Value) -> Result<(String, String), Error> {
    let bad = || invalid("tojson: separators are two texts");
    let texts: Vec<Value> = pair.try_iter()?.collect();
    match &texts[..] {
        [items, keys] => {
            Ok((items.as_str().ok_or_else(bad)?.to_owned(), keys.as_str().ok_or_else(bad)?.to_owned()))
        }
        _ => Err(bad()),
    }
}

fn invalid(detail: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid("tojson: nested too deeply"));
    }
    limits::check(out.len())?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => write!(out, "{value}").map_err(|_| invalid("tojson"))?,
        ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?;
            write_items(out, ['[', ']'], items, style, depth, |out, item| {
                write_value(out, &item, style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            write_items(out, ['{', '}'], keys.into_iter(), style, depth, |out, key| {
                write_key(out, &key, style)?;
                out.push_str(&style.after_key);
                write_value(out, &value.get_item(&key)?, style, depth + 1)
            })?;
        }
        kind => return Err(invalid(format!("tojson: a value of kind {kind} is not JSON serializable"))),
    }
    Ok(())
}

/// Keys are strings in JSON; Python spells the other simple ones.
fn write_key(out: &mut String, key: &Value, style: &Style) -> Result<(), Error> {
    match key.kind() {
        ValueKind::String => write_string(out, key.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            out.push('"');
            write_value(out, key, style, 0)?;
            out.push('"');
        }
        kind => return Err(invalid(format!("tojson: keys must be strings or numbers, not {kind}"))),
    }
    Ok(())
}

fn write_items<T>(
    out: &mut String,
    [open, close]: [char; 2],
    items: impl Iterator<Item = T>,
    style: &Style,
    depth: usize,
    mut write: impl FnMut(&mut String, T) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(open);
    let mut empty = true;
    for item in items {
        if !empty {
            out.push_str(&style.between_items);
        }
        empty = false;
        new_line(out, depth + 1);
        write(out, item)?;
    }
    if !empty {
        new_line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn write_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{08}' => out.push_str("\\b"),
            '\u{0C}' => out.push_str("\\f"),
            control if control < ' ' => escape(out, u16::from(control as u8)),
            beyond if ensure_ascii && beyond >= '\u{7F}' => {
                beyond.encode_utf16(&mut [0; 2]).iter().for_each(|unit| escape(out, *unit));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

fn escape(out: &mut String, unit: u16) {
    out.push_str(&format!("\\u{unit:04x}"));
}

/// A float as Python's `repr` spells it: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if value != 0.0 && !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => {
            let plain = value.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_spelled_as_in_python() {
        for (value, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (5e-324, "5e-324"),
            (123456.789, "123456.789"),
        ] {
            assert_eq!(float(value), expected);
        }
    }
}

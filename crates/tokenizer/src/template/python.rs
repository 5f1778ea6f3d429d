//! Values as Python prints them: `str` and `repr`, and the filters that go by them.
//! <https://docs.python.org/3/reference/datamodel.html#object.__str__>

use std::fmt::Write;

use minijinja::value::{Kwargs, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};

use super::json::float;
use super::limits;

/// Lists and maps within one another.
const MAX_DEPTH: usize = 256;

/// Writes what `{{ value }}` prints.
pub(super) fn print(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let failed = |_| Error::from(ErrorKind::WriteFailure);
    match value.as_str() {
        Some(text) => out.write_str(text).map_err(failed),
        None => out.write_str(&text(value)?).map_err(failed),
    }
}

/// Python's `str(value)`.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let mut out = String::new();
            write(&mut out, value, 0)?;
            Ok(out)
        }
    }
}

/// The filter `string`.
pub(super) fn string(value: Value) -> Result<String, Error> {
    text(&value)
}

/// The filter `join`.
pub(super) fn join(value: Value, separator: Option<Value>, named: Kwargs) -> Result<String, Error> {
    let separator = match separator {
        Some(separator) => Some(separator),
        None => named.get::<Option<Value>>("d")?,
    };
    let attribute = named.get::<Option<Value>>("attribute")?;
    named.assert_all_used()?;
    let separator = separator.map(|separator| text(&separator)).transpose()?.unwrap_or_default();
    let mut out = String::new();
    for (index, item) in value.try_iter()?.enumerate() {
        if index > 0 {
            out.push_str(&separator);
        }
        out.push_str(&match &attribute {
            Some(attribute) => text(&item.get_item(attribute)?)?,
            None => text(&item)?,
        });
        limits::check(out.len())?;
    }
    Ok(out)
}

/// Python's `repr(value)`.
fn write(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply"));
    }
    // Lists that share their items print exponentially.
    limits::check(out.len())?;
    match value.kind() {
        ValueKind::String => write_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => {
            // Python's names of what is no number differ from JSON's.
            let number = f64::try_from(value.clone())?;
            out.push_str(&match number {
                _ if number.is_nan() => "nan".to_owned(),
                f64::INFINITY => "inf".to_owned(),
                f64::NEG_INFINITY => "-inf".to_owned(),
                _ => float(number),
            });
        }
        ValueKind::Seq => {
            let tuple = value.downcast_object_ref::<Tuple>().is_some();
            let length = value.len().unwrap_or(0);
            out.push(if tuple { '(' } else { '[' });
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write(out, &item, depth + 1)?;
            }
            out.push_str(if tuple && length == 1 { "," } else { "" });
            out.push(if tuple { ')' } else { ']' });
        }
        ValueKind::Map if value.as_object().is_none_or(|object| object.is_true()) => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write(out, &key, depth + 1)?;
                out.push_str(": ");
                write(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => write!(out, "{value}").map_err(|_| Error::from(ErrorKind::WriteFailure))?,
    }
    Ok(())
}

fn write_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == quote => out.extend(['\\', quote]),
            control if control < ' ' || control == '\u{7F}' => {
                out.push_str(&format!("\\x{:02x}", u32::from(control)));
            }
            other => out.push(other),
        }
    }
    out.push(quote);
}

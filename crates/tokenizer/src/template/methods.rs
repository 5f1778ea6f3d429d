//! Methods of Python's strings, lists and dicts, and Jinja2's filters, that minijinja does not have.
//! <https://docs.python.org/3/library/stdtypes.html#string-methods>

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::python;

/// The widest text that padding makes; nobody needs more than a line.
const MAX_WIDTH: usize = 10_000;

/// Calls a method that a value does not have by itself.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let own = match (value.as_str(), value.kind()) {
        (Some(text), _) => of_string(text, method, arguments)?,
        (_, ValueKind::Seq) => of_list(value, method, arguments)?,
        (_, ValueKind::Map) if method == "copy" => Some(value.clone()),
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, arguments),
    }
}

fn of_string(text: &str, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "rsplit" => {
            let (separator, limit): (Option<Value>, Option<i64>) = from_args(arguments)?;
            let separator = separator.filter(|separator| !separator.is_none());
            Value::from(rsplit(text, separator.as_ref().and_then(Value::as_str), limit)?)
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            if separator.is_empty() {
                return Err(invalid("empty separator"));
            }
            let last = method == "rpartition";
            let split = if last { text.rsplit_once(separator) } else { text.split_once(separator) };
            let parts = match split {
                Some((before, after)) => [before, separator, after],
                None if last => ["", "", text],
                None => [text, "", ""],
            };
            Value::from(Tuple::new(parts.map(Value::from).to_vec()))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(arguments)?;
            let found = if method == "index" { text.find(part) } else { text.rfind(part) };
            let at = found.ok_or_else(|| invalid("substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "swapcase" => {
            let swap = |c: char| -> String {
                if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "casefold" => Value::from(text.to_lowercase().replace('ß', "ss")),
        "isdecimal" => Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit())),
        "istitle" => {
            // Letters with case begin words as capitals, and nowhere else.
            let mut after_cased = false;
            let mut any = false;
            let titled = text.chars().all(|c| {
                let fits = if c.is_uppercase() { !after_cased } else { !c.is_lowercase() || after_cased };
                after_cased = c.is_uppercase() || c.is_lowercase();
                any |= after_cased;
                fits
            });
            Value::from(titled && any)
        }
        "center" | "ljust" | "rjust" => {
            let (width, fill): (usize, Option<&str>) = from_args(arguments)?;
            Value::from(pad(text, width, fill.unwrap_or(" "), method)?)
        }
        "zfill" => {
            let (width,): (usize,) = from_args(arguments)?;
            let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
            let sign = &text[..text.len() - digits.len()];
            let padded = pad(digits, width.saturating_sub(sign.len()), "0", "rjust")?;
            Value::from(format!("{sign}{padded}"))
        }
        _ => return Ok(None),
    }))
}

fn of_list(value: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "index" => {
            let (wanted,): (Value,) = from_args(arguments)?;
            let at = value.try_iter()?.position(|item| item == wanted);
            Value::from(at.ok_or_else(|| invalid("value is not in list"))?)
        }
        "copy" => value.clone(),
        _ => return Ok(None),
    }))
}

fn invalid(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// Splits from the right, at most `limit` times.
fn rsplit(text: &str, separator: Option<&str>, limit: Option<i64>) -> Result<Vec<String>, Error> {
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let mut parts: Vec<String> = Vec::new();
    match separator {
        Some("") => return Err(invalid("empty separator")),
        Some(separator) => {
            parts.extend(text.rsplitn(limit.saturating_add(1), separator).map(str::to_owned));
        }
        None => {
            let mut rest = text.trim_end();
            while !rest.is_empty() && parts.len() < limit {
                let begin = rest
                    .rfind(char::is_whitespace)
                    .map_or(0, |at| at + rest[at..].chars().next().map_or(1, char::len_utf8));
                parts.push(rest[begin..].to_owned());
                rest = rest[..begin].trim_end();
            }
            if !rest.is_empty() {
                parts.push(rest.to_owned());
            }
        }
    }
    parts.reverse();
    Ok(parts)
}

/// Pads to a width in characters. Where the sides cannot be equal, Python gives `center` the more on the left if the
/// width is odd.
fn pad(text: &str, width: usize, fill: &str, how: &str) -> Result<String, Error> {
    if width > MAX_WIDTH || fill.chars().count() != 1 {
        return Err(invalid("padding takes one character, and a width of at most 10000"));
    }
    let missing = width.saturating_sub(text.chars().count());
    let left = match how {
        "ljust" => 0,
        "rjust" => missing,
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left)))
}

/// The filter `default(value='', boolean=false)`.
pub(super) fn default(
    value: Value,
    other: Option<Value>,
    boolean: Option<bool>,
    named: Kwargs,
) -> Result<Value, Error> {
    let other = other.or(named.get::<Option<Value>>("default_value")?).unwrap_or_else(|| Value::from(""));
    let boolean = boolean.or(named.get::<Option<bool>>("boolean")?).unwrap_or(false);
    named.assert_all_used()?;
    Ok(if value.is_undefined() || (boolean && !value.is_true()) { other } else { value })
}

/// The filter `int(default=0)`: of what is no number, the default.
pub(super) fn int(value: Value, default: Option<i64>, named: Kwargs) -> Result<Value, Error> {
    let default = default.or(named.get::<Option<i64>>("default")?).unwrap_or(0);
    named.assert_all_used()?;
    if value.is_integer() {
        return Ok(value);
    }
    let text = python::text(&value)?;
    let text = text.trim();
    Ok(match (value.kind(), text.parse::<i64>(), text.parse::<f64>()) {
        (ValueKind::Bool, ..) => Value::from(i64::from(value.is_true())),
        (_, Ok(integer), _) => Value::from(integer),
        (_, _, Ok(float)) if float.is_finite() => Value::from(float as i64),
        _ => Value::from(default),
    })
}

/// The filter `float(default=0.0)`.
pub(super) fn float(value: Value, default: Option<f64>, named: Kwargs) -> Result<f64, Error> {
    let default = default.or(named.get::<Option<f64>>("default")?).unwrap_or(0.0);
    named.assert_all_used()?;
    Ok(match value.kind() {
        ValueKind::Bool => f64::from(u8::from(value.is_true())),
        _ => python::text(&value)?.trim().parse().unwrap_or(default),
    })
}

/// The filter `wordcount`.
pub(super) fn wordcount(value: Value) -> Result<usize, Error> {
    let text = python::text(&value)?;
    Ok(text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count())
}

/// The filter `urlencode` of a text: all but letters, digits and `_.-~/`.
pub(super) fn urlencode(value: Value) -> Result<String, Error> {
    let text = python::text(&value)?;
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' | b'/' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    Ok(text.bytes().map(encode).collect())
}

/// The filter `center(width=80)`.
pub(super) fn center(value: Value, width: Option<usize>) -> Result<String, Error> {
    pad(&python::text(&value)?, width.unwrap_or(80), " ", "center")
}

/// The filter `attr`: dicts have items, not attributes.
pub(super) fn attr(value: Value, name: &str) -> Result<Value, Error> {
    if value.kind() == ValueKind::Map
        && value.as_object().is_none_or(|object| object.downcast_ref::<Tuple>().is_none())
    {
        return Ok(Value::UNDEFINED);
    }
    value.get_attr(name)
}

/// The test `callable`.
pub(super) fn is_callable(value: &Value) -> bool {
    value.kind() == ValueKind::Plain && value.as_object().is_some()
}

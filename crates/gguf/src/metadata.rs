//! The key-value section of a file.

use std::path::{Path, PathBuf};

use crate::cursor::Cursor;
use crate::{Array, Error, Problem, Strings, Value, error};

/// Most keys of one file. Files in the wild have fewer than a hundred.
const MAX_KEYS: u64 = 1 << 16;

/// Longest key, from the format's text.
const MAX_KEY_BYTES: u64 = (1 << 16) - 1;

/// Metadata of a model: keys and typed values, in the order of the file.
///
/// The typed getters return `Ok(None)` for a key that the file does not have, and an error that names the key, what
/// was expected and what was found when the value is of another type. The `require_*` forms make a missing key an
/// error too. Any integer type serves for an integer, as long as the value fits: converters disagree about widths.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    file: PathBuf,
    entries: Vec<(Box<str>, Value)>,
    /// Indices of `entries`, sorted by key.
    by_key: Vec<u32>,
}

macro_rules! require {
    ($($(#[$doc:meta])* $require:ident, $get:ident, $out:ty, $expected:literal;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`Problem::MissingKey`] or [`Problem::KeyType`].
            pub fn $require(&self, key: &str) -> Result<$out, Error> {
                self.$get(key)?.ok_or_else(|| self.missing(key, $expected))
            }
        )*
    };
}

impl Metadata {
    /// Metadata for a writer; later keys replace earlier ones of the same name.
    pub fn new() -> Metadata {
        Metadata::default()
    }

    /// Sets `key`, at its old place or at the end.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        match self.find(key) {
            Ok(index) => self.entries[index].1 = value.into(),
            Err(rank) => {
                self.by_key.insert(rank, self.entries.len() as u32);
                self.entries.push((key.into(), value.into()));
            }
        }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.find(key).ok().map(|index| &self.entries[index].1)
    }

    /// Whether the file has `key`.
    pub fn contains(&self, key: &str) -> bool {
        self.find(key).is_ok()
    }

    /// All keys and values, in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// An integer of any type that fits in `u32`.
    ///
    /// # Errors
    /// [`Problem::KeyType`].
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.integer(key, "an integer that fits in u32")
    }

    /// An integer of any type that fits in `u64`.
    ///
    /// # Errors
    /// [`Problem::KeyType`].
    pub fn u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.integer(key, "an integer that fits in u64")
    }

    /// An integer of any type that fits in `i32`.
    ///
    /// # Errors
    /// [`Problem::KeyType`].
    pub fn i32(&self, key: &str) -> Result<Option<i32>, Error> {
        self.integer(key, "an integer that fits in i32")
    }

    /// An `f32`, or an `f64` rounded to one.
    ///
    /// # Errors
    /// [`Problem::KeyType`].
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, "f32", |value| match value {
            Value::F32(value) => Some(*value),
            Value::F64(value) => Some(*value as f32),
            _ => None,
        })
    }

    /// A bool.
    ///
    /// # Errors
    /// [`Problem::KeyType`].
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "bool", |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// A string.
    ///
    /// # Errors
    /// [`Problem::KeyType`], or [`Problem::NotUtf8`] for bytes that are no text.
    pub fn str(&self, key: &str) -> Result<Option<&str>, Error> {
        let bytes = self.typed(key, "string", |value| match value {
            Value::String(bytes) => Some(bytes),
            _ => None,
        })?;
        let text = bytes.map(|bytes| text(bytes, || format!("the value of key \"{key}\""))).transpose();
        text.map_err(|problem| self.error(problem))
    }

    /// An array of strings.
    ///
    /// # Errors
    /// [`Problem::KeyType`].
    pub fn strings(&self, key: &str) -> Result<Option<&Strings>, Error> {
        self.typed(key, "array of string", |value| match value {
            Value::Array(Array::Strings(strings)) => Some(strings),
            _ => None,
        })
    }

    /// An array of integers of any type that all fit in `u32`.
    ///
    /// # Errors
    /// [`Problem::KeyType`].
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, Error> {
        self.integers(key, "array of integers that fit in u32")
    }

    /// An array of integers of any type that all fit in `i32`.
    ///
    /// # Errors
    /// [`Problem::KeyType`].
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, Error> {
        self.integers(key, "array of integers that fit in i32")
    }

    /// An array of `f32`, or of `f64` rounded to it.
    ///
    /// # Errors
    /// [`Problem::KeyType`].
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, Error> {
        self.typed(key, "array of f32", |value| match value {
            Value::Array(Array::F32(items)) => Some(items.to_vec()),
            Value::Array(Array::F64(items)) => Some(items.iter().map(|&item| item as f32).collect()),
            _ => None,
        })
    }

    /// An array of bools.
    ///
    /// # Errors
    /// [`Problem::KeyType`].
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>, Error> {
        self.typed(key, "array of bool", |value| match value {
            Value::Array(Array::Bool(items)) => Some(&items[..]),
            _ => None,
        })
    }

    /// A value per layer: an array of `layers` integers that fit in `u32`, or one integer for all layers. Head counts
    /// and FFN widths come in either form.
    ///
    /// # Errors
    /// [`Problem::KeyType`].
    pub fn u32_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<u32>>, Error> {
        match self.get(key) {
            Some(Value::Array(array)) => match self.u32s(key)? {
                Some(items) if items.len() == layers => Ok(Some(items)),
                _ => Err(self.error(Problem::KeyType {
                    key: key.to_owned(),
                    expected: format!("an integer or an array of {layers} integers"),
                    found: format!("{} of length {}", error::array_name(array.element_type()), array.len()),
                })),
            },
            _ => Ok(self.u32(key)?.map(|item| vec![item; layers])),
        }
    }

    require! {
        /// [`Metadata::u32`] of a key that must be there.
        require_u32, u32, u32, "an integer";
        /// [`Metadata::u64`] of a key that must be there.
        require_u64, u64, u64, "an integer";
        /// [`Metadata::f32`] of a key that must be there.
        require_f32, f32, f32, "f32";
        /// [`Metadata::bool`] of a key that must be there.
        require_bool, bool, bool, "bool";
        /// [`Metadata::str`] of a key that must be there.
        require_str, str, &str, "string";
        /// [`Metadata::strings`] of a key that must be there.
        require_strings, strings, &Strings, "array of string";
        /// [`Metadata::f32s`] of a key that must be there.
        require_f32s, f32s, Vec<f32>, "array of f32";
        /// [`Metadata::i32s`] of a key that must be there.
        require_i32s, i32s, Vec<i32>, "array of integers";
    }

    /// An error about this metadata's file, for readers with conditions of their own on a value.
    pub fn error(&self, problem: Problem) -> Error {
        Error::new(&self.file, problem)
    }

    fn missing(&self, key: &str, expected: &'static str) -> Error {
        self.error(Problem::MissingKey { key: key.to_owned(), expected })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || {
            self.error(Problem::KeyType {
                key: key.to_owned(),
                expected: expected.to_owned(),
                found: value.describe(),
            })
        };
        convert(value).ok_or_else(wrong).map(Some)
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, expected: &str) -> Result<Option<T>, Error> {
        self.typed(key, expected, |value| T::try_from(value.as_integer()?).ok())
    }

    fn integers<T: TryFrom<i128>>(&self, key: &str, expected: &str) -> Result<Option<Vec<T>>, Error> {
        self.typed(key, expected, |value| match value {
            Value::Array(array) => array.integers(|item| T::try_from(item).ok()),
            _ => None,
        })
    }

    /// Index of `key` in `entries`, or its rank in `by_key`.
    fn find(&self, key: &str) -> Result<usize, usize> {
        let rank = self.by_key.binary_search_by(|&index| (*self.entries[index as usize].0).cmp(key))?;
        Ok(self.by_key[rank] as usize)
    }

    /// Reads the `count` pairs at `cursor`.
    pub(crate) fn read(cursor: &mut Cursor<'_>, count: u64, file: &Path) -> Result<Metadata, Problem> {
        // A pair is at least a key length, a value type and one byte of value.
        let count = cursor.check_count(count, 8 + 4 + 1, MAX_KEYS, || "metadata keys".into())?;
        let mut entries = Vec::with_capacity(count);
        for index in 0..count {
            let what = || format!("the name of key {index}");
            let key = cursor.string(what)?;
            if key.is_empty() {
                return Err(Problem::EmptyName { what: format!("key {index}") });
            }
            if key.len() as u64 > MAX_KEY_BYTES {
                let what = format!("bytes of the name of key {index}");
                let (found, why) = (key.len() as u64, "are allowed");
                return Err(Problem::Count { what, found, limit: MAX_KEY_BYTES, why });
            }
            let key = text(key, what)?;
            let id = cursor.u32(|| format!("the value type of key \"{key}\""))?;
            entries.push((Box::from(key), Value::read(cursor, id, key)?));
        }
        let mut metadata = Metadata { file: file.into(), by_key: (0..count as u32).collect(), entries };
        let Metadata { entries, by_key, .. } = &mut metadata;
        by_key.sort_unstable_by(|&a, &b| entries[a as usize].0.cmp(&entries[b as usize].0));
        let twice = by_key.windows(2).find(|pair| entries[pair[0] as usize].0 == entries[pair[1] as usize].0);
        match twice {
            Some(pair) => Err(Problem::DuplicateKey { key: entries[pair[0] as usize].0.to_string() }),
            None => Ok(metadata),
        }
    }
}

/// `bytes` as text, or an error that shows where they begin.
pub(crate) fn text(bytes: &[u8], what: impl FnOnce() -> String) -> Result<&str, Problem> {
    std::str::from_utf8(bytes).map_err(|_| Problem::NotUtf8 {
        what: what(),
        found: format!("\"{}\"", bytes.get(..32).unwrap_or(bytes).escape_ascii()),
    })
}

impl Value {
    /// A string value of these bytes.
    pub fn string(bytes: impl AsRef<[u8]>) -> Value {
        Value::String(bytes.as_ref().into())
    }
}

macro_rules! value_from {
    ($($from:ty => $variant:ident;)*) => {
        $(
            impl From<$from> for Value {
                fn from(value: $from) -> Value {
                    Value::$variant(value.into())
                }
            }
            impl From<Vec<$from>> for Value {
                fn from(values: Vec<$from>) -> Value {
                    Value::Array(Array::$variant(values.into()))
                }
            }
        )*
    };
}

value_from! {
    u8 => U8; i8 => I8; u16 => U16; i16 => I16; u32 => U32; i32 => I32;
    u64 => U64; i64 => I64; f32 => F32; f64 => F64; bool => Bool;
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::string(value)
    }
}

impl From<String> for Value {
    fn from(value: String) -> Value {
        Value::string(value)
    }
}

impl From<Strings> for Value {
    fn from(values: Strings) -> Value {
        Value::Array(Array::Strings(values))
    }
}

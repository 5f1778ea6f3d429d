//! Metadata values.

use std::fmt;

use crate::cursor::Cursor;
use crate::{Problem, error};

/// Type of a metadata value, with the id it has in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)] // The names say it all.
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// Every type, by ascending id.
    pub const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// The type of an id in a file.
    pub fn from_id(id: u32) -> Option<ValueType> {
        ValueType::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// Its name in messages: `u32`, `string`, `array`.
    pub const fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // One variant per `ValueType`.
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    /// Bytes, because not every file in the wild holds valid UTF-8.
    String(Box<[u8]>),
    Array(Array),
}

/// An array of a metadata value. GGUF has no arrays of arrays here: the format's text allows them, no file uses them,
/// and readers refuse them.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // One variant per element type.
pub enum Array {
    U8(Box<[u8]>),
    I8(Box<[i8]>),
    U16(Box<[u16]>),
    I16(Box<[i16]>),
    U32(Box<[u32]>),
    I32(Box<[i32]>),
    U64(Box<[u64]>),
    I64(Box<[i64]>),
    F32(Box<[f32]>),
    F64(Box<[f64]>),
    Bool(Box<[bool]>),
    Strings(Strings),
}

/// Calls `$body` with `$items` bound to the elements of a numeric or bool array; `$strings` for strings.
macro_rules! each_array {
    ($array:expr, $items:ident => $body:expr, $strings:ident => $other:expr) => {
        match $array {
            Array::U8($items) => $body,
            Array::I8($items) => $body,
            Array::U16($items) => $body,
            Array::I16($items) => $body,
            Array::U32($items) => $body,
            Array::I32($items) => $body,
            Array::U64($items) => $body,
            Array::I64($items) => $body,
            Array::F32($items) => $body,
            Array::F64($items) => $body,
            Array::Bool($items) => $body,
            Array::Strings($strings) => $other,
        }
    };
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        each_array!(self, items => items.len(), strings => strings.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        match self {
            Array::U8(_) => ValueType::U8,
            Array::I8(_) => ValueType::I8,
            Array::U16(_) => ValueType::U16,
            Array::I16(_) => ValueType::I16,
            Array::U32(_) => ValueType::U32,
            Array::I32(_) => ValueType::I32,
            Array::U64(_) => ValueType::U64,
            Array::I64(_) => ValueType::I64,
            Array::F32(_) => ValueType::F32,
            Array::F64(_) => ValueType::F64,
            Array::Bool(_) => ValueType::Bool,
            Array::Strings(_) => ValueType::String,
        }
    }

    /// The elements if they are integers of any type and `narrow` accepts every one.
    pub(crate) fn integers<T>(&self, narrow: impl Fn(i128) -> Option<T>) -> Option<Vec<T>> {
        fn each<S: Copy + Into<i128>, T>(items: &[S], narrow: impl Fn(i128) -> Option<T>) -> Option<Vec<T>> {
            items.iter().map(|&item| narrow(item.into())).collect()
        }
        match self {
            Array::U8(items) => each(items, narrow),
            Array::I8(items) => each(items, narrow),
            Array::U16(items) => each(items, narrow),
            Array::I16(items) => each(items, narrow),
            Array::U32(items) => each(items, narrow),
            Array::I32(items) => each(items, narrow),
            Array::U64(items) => each(items, narrow),
            Array::I64(items) => each(items, narrow),
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::Strings(_) => None,
        }
    }
}

impl Value {
    /// Type of this value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F32(_) => ValueType::F32,
            Value::F64(_) => ValueType::F64,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
        }
    }

    /// The value if it is an integer of any type, widened.
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Value::U8(value) => Some(value.into()),
            Value::I8(value) => Some(value.into()),
            Value::U16(value) => Some(value.into()),
            Value::I16(value) => Some(value.into()),
            Value::U32(value) => Some(value.into()),
            Value::I32(value) => Some(value.into()),
            Value::U64(value) => Some(value.into()),
            Value::I64(value) => Some(value.into()),
            _ => None,
        }
    }

    /// The value if it is a string of valid UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// Type, and for integers the value, as error messages name it.
    pub(crate) fn describe(&self) -> String {
        match self {
            Value::Array(array) => {
                format!("{} of length {}", error::array_name(array.element_type()), array.len())
            }
            value => match value.as_integer() {
                Some(integer) => format!("{} {integer}", value.value_type()),
                None => value.value_type().to_string(),
            },
        }
    }

    /// Reads a value of type id `id`.
    pub(crate) fn read(cursor: &mut Cursor<'_>, id: u32, key: &str) -> Result<Value, Problem> {
        let what = || format!("the value of key \"{key}\"");
        let unknown = || Problem::UnknownValueType { key: key.to_owned(), found: id };
        Ok(match ValueType::from_id(id).ok_or_else(unknown)? {
            ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array(what)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array(what)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array(what)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array(what)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(cursor.array(what)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array(what)?)),
            ValueType::U64 => Value::U64(u64::from_le_bytes(cursor.array(what)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array(what)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array(what)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array(what)?)),
            ValueType::Bool => {
                let [byte] = cursor.array(what)?;
                Value::Bool(read_bool(byte, key)?)
            }
            ValueType::String => Value::String(cursor.string(what)?.into()),
            ValueType::Array => Value::Array(Array::read(cursor, key)?),
        })
    }
}

fn read_bool(byte: u8, key: &str) -> Result<bool, Problem> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(Problem::BadBool { key: key.to_owned(), found }),
    }
}

impl Array {
    /// Reads element type, count and elements.
    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Array, Problem> {
        let id = cursor.u32(|| format!("the element type of key \"{key}\""))?;
        let unknown = || Problem::UnknownValueType { key: key.to_owned(), found: id };
        let element = ValueType::from_id(id).ok_or_else(unknown)?;
        let count = cursor.u64(|| format!("the element count of key \"{key}\""))?;
        Ok(match element {
            ValueType::U8 => Array::U8(read_items(cursor, count, key, u8::from_le_bytes)?),
            ValueType::I8 => Array::I8(read_items(cursor, count, key, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(read_items(cursor, count, key, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(read_items(cursor, count, key, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(read_items(cursor, count, key, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(read_items(cursor, count, key, i32::from_le_bytes)?),
            ValueType::U64 => Array::U64(read_items(cursor, count, key, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(read_items(cursor, count, key, i64::from_le_bytes)?),
            ValueType::F32 => Array::F32(read_items(cursor, count, key, f32::from_le_bytes)?),
            ValueType::F64 => Array::F64(read_items(cursor, count, key, f64::from_le_bytes)?),
            ValueType::Bool => {
                let bytes = read_items(cursor, count, key, u8::from_le_bytes)?;
                Array::Bool(bytes.iter().map(|&byte| read_bool(byte, key)).collect::<Result<_, _>>()?)
            }
            ValueType::String => Array::Strings(Strings::read(cursor, count, key)?),
            ValueType::Array => return Err(Problem::NestedArray { key: key.to_owned() }),
        })
    }
}

fn elements_of(key: &str) -> String {
    format!("the elements of key \"{key}\"")
}

/// Reads `count` elements of `N` bytes each.
fn read_items<T, const N: usize>(
    cursor: &mut Cursor<'_>,
    count: u64,
    key: &str,
    from_bytes: impl Fn([u8; N]) -> T,
) -> Result<Box<[T]>, Problem> {
    let count = cursor.check_count(count, N as u64, u64::MAX, || elements_of(key))?;
    let bytes = cursor.take((count * N) as u64, || elements_of(key))?;
    Ok(bytes.as_chunks::<N>().0.iter().map(|&chunk| from_bytes(chunk)).collect())
}

/// An array of strings in one buffer: a vocabulary of 262,144 tokens is two allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    bytes: Vec<u8>,
    /// Where each string ends in `bytes`. As wide as the length that precedes each string in a file, so both buffers
    /// together never exceed the file.
    ends: Vec<u64>,
}

impl Strings {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of string `index`. Not always valid UTF-8: a token may be half a character.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let begin = match index.checked_sub(1) {
            Some(previous) => self.ends[previous] as usize,
            None => 0,
        };
        self.bytes.get(begin..end)
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        let mut begin = 0;
        self.ends.iter().map(move |&end| {
            let string = &self.bytes[begin..end as usize];
            begin = end as usize;
            string
        })
    }

    /// Appends a string.
    pub fn push(&mut self, string: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(string.as_ref());
        self.ends.push(self.bytes.len() as u64);
    }

    fn read(cursor: &mut Cursor<'_>, count: u64, key: &str) -> Result<Strings, Problem> {
        let what = || elements_of(key);
        let count = cursor.check_count(count, 8, u64::MAX, what)?;
        let mut ends = Vec::with_capacity(count);
        let begin = cursor.position();
        let mut total = 0;
        let mut scan = cursor.clone();
        for _ in 0..count {
            total += scan.string(what)?.len();
            ends.push(total as u64);
        }
        let mut bytes = Vec::with_capacity(total);
        debug_assert_eq!(scan.position() - begin, (8 * count + total) as u64);
        for _ in 0..count {
            bytes.extend_from_slice(cursor.string(what)?);
        }
        Ok(Strings { bytes, ends })
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Strings {
        let mut all = Strings::default();
        strings.into_iter().for_each(|string| all.push(string));
        all
    }
}

//! A request's JSON object, struct by struct: each takes the fields it knows, and what none took is refused by its name.
//!
//! The structs are the one description of a request there is: the served OpenAPI document is made of them too.

mod names;

use std::fmt::Display;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::ApiError;

/// The fields that nobody took yet.
pub(crate) struct Fields(Map<String, Value>);

/// One or several.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(crate) enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    pub(crate) fn into_list(self) -> Vec<String> {
        match self {
            OneOrMore::One(text) => vec![text],
            OneOrMore::More(list) => list,
        }
    }
}

impl Fields {
    /// Of a body, which has to be an object.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Fields(fields)),
            Ok(_) => Err(ApiError::invalid("the body is not a JSON object")),
            Err(error) => Err(ApiError::invalid(format!("the body is not JSON: {error}"))),
        }
    }

    /// Takes the fields of a struct. Null is as good as missing.
    pub(crate) fn read<T: DeserializeOwned>(&mut self) -> Result<T, ApiError> {
        let own = names::of::<T>().iter().filter_map(|name| self.0.remove_entry(*name));
        let own: Map<String, Value> = own.filter(|(_, value)| !value.is_null()).collect();
        read_at(Value::Object(own), "")
    }

    /// All fields as one struct, which takes them all.
    pub(crate) fn whole<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
        let mut fields = Fields::parse(body)?;
        let read = fields.read()?;
        fields.finish()?;
        Ok(read)
    }

    /// Refuses what is left. Null and false ask for nothing.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        let asks = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
        match self.0.iter().find(|(_, value)| asks(value)) {
            Some((name, _)) => Err(ApiError::unsupported(name)),
            None => Ok(()),
        }
    }
}

/// Reads a value that stands at `at` of the request. What is wrong is named by where it is.
pub(crate) fn read_at<T: DeserializeOwned>(value: Value, at: &str) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let message = error.inner().to_string();
        let join = |left: &str, right: &str| match (left, right) {
            (left, "." | "") => left.to_owned(),
            ("" | ".", right) => right.to_owned(),
            (left, right) if right.starts_with('[') => format!("{left}{right}"),
            (left, right) => format!("{left}.{right}"),
        };
        let at = join(at, &path);
        match message.strip_prefix("missing field `").and_then(|rest| rest.split_once('`')) {
            Some((name, _)) => missing(join(&at, name)),
            None if at.is_empty() => ApiError::invalid(message),
            None => ApiError::field(at, message),
        }
    })
}

/// 400: a field that there has to be.
pub(crate) fn missing(param: impl Into<String> + Display) -> ApiError {
    ApiError::field(param, "is missing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Some_ {
        a: Option<u32>,
        b: Option<u32>,
        c: Option<Vec<Inner>>,
    }

    #[derive(Debug, Deserialize)]
    struct Inner {
        #[expect(dead_code, reason = "only read")]
        x: u32,
    }

    #[derive(Debug, Deserialize)]
    struct Needs {
        #[expect(dead_code, reason = "only read")]
        n: u32,
    }

    #[test]
    fn fields_are_taken_by_name_and_the_rest_is_refused() {
        let mut fields = Fields::parse(br#"{"a": 1, "b": null, "d": [1], "e": false}"#).unwrap();
        let some: Some_ = fields.read().unwrap();
        assert_eq!((some.a, some.b, some.c.is_none()), (Some(1), None, true));
        let error = fields.read::<Needs>().unwrap_err();
        assert_eq!((error.param.as_deref(), &error.message[..]), (Some("n"), "n: is missing"));
        let error = fields.finish().unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some("d"), Some("unsupported_parameter")));
        for body in ["", "[]", "{", "1", &"[".repeat(1000)] {
            assert!(Fields::parse(body.as_bytes()).is_err());
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_where_it_is() {
        for (body, param) in [
            (r#"{"a": "x"}"#, "a"),
            (r#"{"a": -1}"#, "a"),
            (r#"{"c": {}}"#, "c"),
            (r#"{"c": [{"x": 1}, {"x": "y"}]}"#, "c[1].x"),
            (r#"{"c": [{}]}"#, "c[0].x"),
        ] {
            let error = Fields::whole::<Some_>(body.as_bytes()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
        }
        let error = read_at::<Inner>(serde_json::json!({}), "tools[2]").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("tools[2].x"));
    }
}

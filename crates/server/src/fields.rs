//! A request's JSON object, field by field: each is taken once, and what nobody took is refused by its name.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::ApiError;

/// The fields that nobody took yet.
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// Of a body, which has to be an object.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Fields(fields)),
            Ok(_) => Err(ApiError::invalid("the body is not a JSON object")),
            Err(error) => Err(ApiError::invalid(format!("the body is not JSON: {error}"))),
        }
    }

    /// A field that may be missing; null is as good as missing.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                serde_json::from_value(value).map(Some).map_err(|error| ApiError::field(name, error))
            }
        }
    }

    /// One of several names of a field; the later ones only if the earlier ones are missing.
    pub(crate) fn take_one_of<T: DeserializeOwned>(&mut self, names: &[&str]) -> Result<Option<T>, ApiError> {
        let mut found = None;
        for name in names {
            let value = self.take(name)?;
            found = found.or(value);
        }
        Ok(found)
    }

    /// A field that there must be.
    pub(crate) fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?.ok_or_else(|| ApiError::field(name, "is missing"))
    }

    /// Fields that have no effect here.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        names.iter().for_each(|name| drop(self.0.remove(*name)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_taken_by_name_and_the_rest_is_refused() {
        let mut fields = Fields::parse(br#"{"a": 1, "b": null, "c": "x", "d": [1], "e": false}"#).unwrap();
        assert_eq!(fields.take::<u32>("a").unwrap(), Some(1));
        assert_eq!(fields.take::<u32>("b").unwrap(), None);
        let error = fields.take::<u32>("c").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("c"));
        assert!(error.message.contains("invalid type: string"), "{}", error.message);
        assert_eq!(fields.need::<u32>("a").unwrap_err().message, "a: is missing");
        let error = fields.finish().unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some("d"), Some("unsupported_parameter")));
        for body in ["", "[]", "{", "1", &"[".repeat(1000)] {
            assert!(Fields::parse(body.as_bytes()).is_err());
        }
    }
}

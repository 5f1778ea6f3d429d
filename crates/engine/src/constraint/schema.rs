//! JSON schemas: what is checked before llguidance has them.

use llguidance::JsonCompileOptions;
use llguidance::api::GrammarWithLexer;
use serde_json::{Value, json};

use super::ConstraintError;

/// White space between the parts of a JSON text: enough for what models write, and never so much that the text does not get
/// on.
const WHITE_SPACE: &str = r" |\r?\n[ \t]{0,64}";

/// Keywords of any draft that restrict a value and are not honoured. llguidance refuses most of them, but only those of the
/// schema's own draft.
pub(super) const UNSUPPORTED: [&str; 20] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "disallow",
    "divisibleBy",
    "else",
    "extends",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    // Options of llguidance, one of which ignores what is not supported.
    "x-guidance",
];

/// Keywords whose value is a schema, a list of schemas, or either.
const SCHEMAS: [&str; 7] =
    ["additionalItems", "additionalProperties", "allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords whose value has schemas by name.
const MAPS: [&str; 4] = ["$defs", "definitions", "patternProperties", "properties"];

/// A schema as llguidance has it.
pub(super) fn lower(text: &str) -> Result<GrammarWithLexer, ConstraintError> {
    let schema = serde_json::from_str(text).map_err(|error| ConstraintError::Json(error.to_string()))?;
    Ok(GrammarWithLexer::from_json_schema(checked(schema)?))
}

/// A schema with nothing in it that is not honoured, and with our white space.
pub(super) fn checked(mut schema: Value) -> Result<Value, ConstraintError> {
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    if !schema.is_object() {
        let why = "it has to be an object or true".to_owned();
        return Err(ConstraintError::Grammar { grammar: "JSON schema", why });
    }
    check(&schema, "")?;
    whole_counts(&mut schema);
    let options = JsonCompileOptions {
        whitespace_pattern: Some(WHITE_SPACE.to_owned()),
        ..JsonCompileOptions::default()
    };
    options.apply_to(&mut schema);
    Ok(schema)
}

/// Writes counts that are whole numbers with a point, as `2.0`, without it, everywhere in a schema (also where they are no
/// keywords: the same numbers).
fn whole_counts(value: &mut Value) {
    const COUNTS: [&str; 6] =
        ["maxItems", "minItems", "maxLength", "minLength", "maxProperties", "minProperties"];
    match value {
        Value::Array(list) => list.iter_mut().for_each(whole_counts),
        Value::Object(map) => {
            for (keyword, value) in map {
                match value.as_f64() {
                    Some(count) if COUNTS.contains(&keyword.as_str()) => {
                        // Exact up to 2^53; what is larger stays as it is.
                        if count.fract() == 0.0 && (0.0..9e15).contains(&count) {
                            *value = Value::from(count as u64);
                        }
                    }
                    _ => whole_counts(value),
                }
            }
        }
        _ => {}
    }
}

/// Looks for what is not honoured in a schema and those in it. (Deep ones are refused when JSON is parsed.)
fn check(schema: &Value, at: &str) -> Result<(), ConstraintError> {
    let Value::Object(keywords) = schema else { return Ok(()) };
    let refused = |keyword: &str| ConstraintError::Keyword { keyword: keyword.to_owned(), at: at.to_owned() };
    for (keyword, value) in keywords {
        if UNSUPPORTED.contains(&keyword.as_str()) {
            return Err(refused(keyword));
        }
        // A reference inside would mean something else.
        if matches!(keyword.as_str(), "$id" | "id") && value.is_string() && !at.is_empty() {
            return Err(refused(keyword));
        }
        let below = |name: &str| format!("{at}/{keyword}/{}", name.replace('~', "~0").replace('/', "~1"));
        if SCHEMAS.contains(&keyword.as_str()) {
            match value {
                Value::Array(list) => {
                    for (index, schema) in list.iter().enumerate() {
                        check(schema, &below(&index.to_string()))?;
                    }
                }
                _ => check(value, &format!("{at}/{keyword}"))?,
            }
        } else if let Value::Object(map) = value
            && MAPS.contains(&keyword.as_str())
        {
            for (name, schema) in map {
                check(schema, &below(name))?;
            }
        }
    }
    Ok(())
}

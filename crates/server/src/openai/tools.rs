//! Tools as OpenAI's clients send them.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::conversation::{Tool, ToolChoice};
use crate::error::ApiError;
use crate::fields::read_at;

/// A tool.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ToolField {
    /// `function`.
    #[expect(dead_code, reason = "checked before, for a better message")]
    r#type: String,
    function: FunctionField,
}

/// A function.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct FunctionField {
    name: String,
    /// For the model.
    #[expect(dead_code, reason = "templates have it from the JSON")]
    description: Option<String>,
    /// A JSON Schema of its arguments.
    parameters: Option<Value>,
    /// Its arguments follow the schema in any case.
    strict: Option<bool>,
}

/// Whether a tool is called.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected \"none\", \"auto\", \"required\" or an object that names a function")]
pub(crate) enum ChoiceField {
    /// `none`, `auto` or `required`.
    Mode(String),
    /// `{"type": "function", "function": {"name": …}}`.
    Named {
        /// `function`.
        r#type: String,
        function: NameField,
    },
    /// `{"type": "function", "name": …}`, as in the Responses API.
    Flat {
        /// `function`.
        r#type: String,
        name: String,
    },
}

/// A function by its name.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct NameField {
    name: String,
}

/// The functions of `tools`.
pub(crate) fn tools(list: Option<Vec<Value>>) -> Result<Vec<Tool>, ApiError> {
    list.into_iter().flatten().enumerate().map(|(index, json)| tool(json, index)).collect()
}

fn tool(json: Value, index: usize) -> Result<Tool, ApiError> {
    let at = format!("tools[{index}]");
    check_kind(json["type"].as_str(), &at)?;
    let ToolField { r#type: _, function } = read_at(json.clone(), &at)?;
    check_name(&function.name, &format!("{at}.function.name"))?;
    let parameters = function.parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    let strict = function.strict.unwrap_or(false);
    Ok(Tool { name: function.name, parameters, strict, json, at: format!("{at}.function") })
}

/// Refuses a tool that is no function.
pub(crate) fn check_kind(kind: Option<&str>, at: &str) -> Result<(), ApiError> {
    match kind {
        Some("function") => Ok(()),
        Some(kind) => {
            let what = format!("tools of type {kind:?} are not supported, functions are");
            Err(ApiError { code: Some("unsupported_parameter"), ..ApiError::field(at, what) })
        }
        None => Err(crate::fields::missing(format!("{at}.type"))),
    }
}

/// Refuses a name that could not be told from other text of a call.
pub(crate) fn check_name(name: &str, at: &str) -> Result<(), ApiError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
    match (1..=128).contains(&name.len()) && name.chars().all(good) {
        true => Ok(()),
        false => Err(ApiError::field(at, "has to be 1 to 128 letters, digits and _ - . : /")),
    }
}

impl ChoiceField {
    pub(crate) fn choice(self) -> Result<ToolChoice, ApiError> {
        let (kind, name) = match self {
            ChoiceField::Mode(mode) => {
                return match &mode[..] {
                    "auto" => Ok(ToolChoice::Auto),
                    "none" => Ok(ToolChoice::None),
                    "required" => Ok(ToolChoice::Required),
                    _ => Err(ApiError::field("tool_choice", format!("{mode:?} is not known"))),
                };
            }
            ChoiceField::Named { r#type, function } => (r#type, function.name),
            ChoiceField::Flat { r#type, name } => (r#type, name),
        };
        match &kind[..] {
            "function" => Ok(ToolChoice::Named(name)),
            _ => Err(ApiError::field("tool_choice.type", format!("{kind:?} is not supported"))),
        }
    }
}

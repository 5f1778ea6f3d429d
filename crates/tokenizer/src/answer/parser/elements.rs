//! Calls as elements: a name, and parameters each with a name.

use serde_json::Value;

use super::super::formats::Elements;
use super::{LONGEST_NAME, Parser, Place, State, Step, is_name};

impl Parser {
    /// The name of a call in elements, after `before`.
    pub(super) fn element_name(
        &mut self,
        mut place: Place,
        elements: &'static Elements,
        before: &str,
    ) -> Step {
        let Some(rest) = self.pending.strip_prefix(before) else {
            return if before.starts_with(&self.pending) { self.wait() } else { self.no_call(place) };
        };
        let Some((name, after)) = rest.split_once(elements.call.1) else {
            return if rest.len() > LONGEST_NAME + elements.call.1.len() {
                self.no_call(place)
            } else {
                self.wait()
            };
        };
        if !is_name(name) {
            return self.no_call(place);
        }
        let (name, taken) = (name.to_owned(), self.pending.len() - after.len());
        self.pending.drain(..taken);
        self.begin(&name);
        place.found += 1;
        self.enter(State::Elements(place, elements, 0))
    }

    pub(super) fn parameter(&mut self, place: Place, elements: &'static Elements, parameters: usize) -> Step {
        let text = self.pending.trim_ascii_start();
        if let Some(after) = text.strip_prefix(elements.call_end) {
            self.pending = after.to_owned();
            self.arguments(if parameters == 0 { "{}" } else { "}" });
            return self.enter(State::Call(place));
        }
        let (before, behind) = elements.parameter;
        let Some(rest) = text.strip_prefix(before) else {
            if before.starts_with(text) || elements.call_end.starts_with(text) {
                return self.wait();
            }
            // No element of a call: the call ends here.
            self.arguments(if parameters == 0 { "{}" } else { "}" });
            return self.enter(State::Call(place));
        };
        let complete = rest.split_once(behind).and_then(|(name, rest)| {
            let (value, after) = rest.split_once(elements.parameter_end)?;
            Some((name, value, after))
        });
        let Some((name, value, after)) = complete else { return self.wait() };
        // DSML: `name" string="true"`.
        let (name, is_text) = match name.split_once("\" string=\"") {
            Some((name, word)) => (name, Some(word.trim_end_matches('"') == "true")),
            None => (name, None),
        };
        let value = self.value(name.trim(), value, is_text);
        let delta =
            format!("{}{}: {value}", if parameters == 0 { "{" } else { ", " }, Value::from(name.trim()));
        self.pending = after.to_owned();
        self.arguments(&delta);
        self.enter(State::Elements(place, elements, parameters + 1))
    }

    /// A parameter as JSON: a text if it is declared as one, or else what it reads as.
    fn value(&self, parameter: &str, value: &str, is_text: Option<bool>) -> String {
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let schema = self.tools.get(&self.function).and_then(|properties| properties.get(parameter));
        let declared = schema.and_then(|schema| schema.get("type")).and_then(Value::as_str);
        let text = || Value::from(value).to_string();
        match value.trim() {
            _ if is_text.unwrap_or(declared == Some("string")) => text(),
            // Templates print Python's words for these.
            "True" => "true".to_owned(),
            "False" => "false".to_owned(),
            "None" => "null".to_owned(),
            value if serde_json::from_str::<Value>(value).is_ok() => value.to_owned(),
            _ => text(),
        }
    }
}

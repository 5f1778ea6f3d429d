//! A conversation to be answered, whatever dialect it came in: to a request of the engine, and how its answer is read.

use std::sync::Arc;

use minfer_engine::{Begin, Budget, Constraint, Grammar, Request};
use minfer_tokenizer::{AnswerFormat, AnswerParser, ChatTemplate, EncodeOptions, TemplateInput};
use serde_json::{Map, Value, json};

use crate::calls;
use crate::error::ApiError;
use crate::generation::{Choices, Reading};
use crate::host::Model;

/// A conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    /// Messages as templates take them.
    pub(crate) messages: Vec<Value>,
    /// What the model may call.
    pub(crate) tools: Vec<Tool>,
    pub(crate) choice: ToolChoice,
    /// Calls of tools in one answer at most; `None` is any number.
    pub(crate) max_calls: Option<usize>,
    /// More variables of the template.
    pub(crate) kwargs: Map<String, Value>,
    pub(crate) ending: Ending,
    /// Tokens that the model may reason for.
    pub(crate) budget: Option<usize>,
    /// The answer is left as one text, reasoning and all.
    pub(crate) unsplit: bool,
}

/// What the prompt ends with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The beginning of an answer.
    #[default]
    Answer,
    /// The last message.
    Message,
    /// The last message without its end, so that it goes on.
    Open,
}

/// Whether a tool is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// As the model decides.
    #[default]
    Auto,
    /// None is, and the model hears of none.
    None,
    /// At least one is.
    Required,
    /// This one is.
    Named(String),
}

/// A function that a model may call.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    pub(crate) name: String,
    /// Schema of its arguments.
    pub(crate) parameters: Value,
    /// Its arguments follow the schema in any case.
    pub(crate) strict: bool,
    /// As templates take it.
    pub(crate) json: Value,
    /// Where it stands in the request.
    pub(crate) at: String,
}

/// A conversation that is ready to be answered.
pub(crate) struct Turn {
    pub(crate) model: Arc<dyn Model>,
    pub(crate) request: Request,
    /// The prompt as a text, for who reads the answer.
    prompt: String,
    format: AnswerFormat,
    tools: Option<Value>,
    max_calls: Option<usize>,
    unsplit: bool,
}

impl Conversation {
    /// How much the model reasons, if its template knows of it; `none` turns it off where it can be.
    pub(crate) fn effort(&mut self, effort: &str) {
        if effort == "none" {
            self.kwargs.entry("enable_thinking").or_insert(json!(false));
        }
        self.kwargs.entry("reasoning_effort").or_insert(json!(effort));
    }

    /// The prompt as a text.
    pub(crate) fn render(&self, model: &dyn Model) -> Result<String, ApiError> {
        let tools = self.told_tools();
        let prompt = self.render_with(model, self.messages.clone(), tools.clone())?;
        if tools.is_none() || self.render_with(model, self.messages.clone(), None)? != prompt {
            return Ok(prompt);
        }
        // The template does not know of tools.
        let format = format_of(model);
        self.render_with(model, calls::told_in_text(&self.messages, &self.tools, format), None)
    }

    fn render_with(
        &self,
        model: &dyn Model,
        messages: Vec<Value>,
        tools: Option<Value>,
    ) -> Result<String, ApiError> {
        let Some(template) = model.template() else {
            return Err(ApiError::invalid(
                "the model has no chat template: it continues text, but does not answer",
            ));
        };
        let last = messages.last().and_then(|message| message["content"].as_str()).map(str::to_owned);
        let tokenizer = model.tokenizer();
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.piece(id)).unwrap_or_default().into_owned();
        let input = TemplateInput {
            messages: Value::Array(messages),
            tools,
            add_generation_prompt: self.ending == Ending::Answer,
            bos: text(tokenizer.bos()),
            eos: text(tokenizer.eos()),
            kwargs: self.kwargs.clone(),
            now: None,
        };
        let mut prompt = template.render(&input).map_err(|error| ApiError::field("messages", error))?;
        if self.ending == Ending::Open {
            let last = last.unwrap_or_default();
            let last = last.trim();
            let begin = prompt.rfind(last).filter(|_| !last.is_empty());
            let Some(begin) = begin else {
                let what = "the last message has no text that could go on";
                return Err(ApiError::field("continue_final_message", what));
            };
            prompt.truncate(begin + last.len());
        }
        Ok(prompt)
    }

    /// The tools that the model hears of.
    fn told_tools(&self) -> Option<Value> {
        let told = !self.tools.is_empty() && self.choice != ToolChoice::None;
        told.then(|| self.tools.iter().map(|tool| tool.json.clone()).collect())
    }

    /// The turn that answers it. `request` has all but its prompt.
    pub(crate) fn turn(self, model: Arc<dyn Model>, mut request: Request) -> Result<Turn, ApiError> {
        let prompt = self.render(&*model)?;
        let (format, tools) = (format_of(&*model), self.told_tools());
        request.prompt = model.tokenizer().encode_prompt(&prompt);
        if tools.is_some() && request.constraint.is_some() {
            return Err(ApiError::field("tools", "cannot be used with a constraint on the text"));
        }
        let begin = match format.reasoning_end(&prompt) {
            Some(end) => after(&*model, end),
            None => Begin::Now,
        };
        if let Some(tokens) = self.budget {
            request.budget = budget(&*model, format, &prompt, tokens);
        }
        if let Some(lark) = calls::grammar(&self, &*model, format)? {
            request.constraint = Some(Constraint { grammar: Grammar::Lark(lark), begin });
        } else if let Some(constraint) = &mut request.constraint {
            // What the model reasons before is free.
            constraint.begin = begin;
        }
        let Conversation { max_calls, unsplit, .. } = self;
        Ok(Turn { model, request, prompt, format, tools, max_calls, unsplit })
    }
}

/// After a marker: a special token has no text.
fn after(model: &dyn Model, marker: &str) -> Begin {
    let tokenizer = model.tokenizer();
    match tokenizer.token_id(marker).filter(|&id| tokenizer.is_special(id)) {
        Some(id) => Begin::AfterToken(id),
        None => Begin::AfterText(marker.to_owned()),
    }
}

/// The bound on what a model reasons; `None` if it writes nothing of the kind.
fn budget(model: &dyn Model, format: AnswerFormat, prompt: &str, tokens: usize) -> Option<Budget> {
    let (begin, end) = match format.reasoning_end(prompt) {
        Some(end) => (Begin::Now, end),
        None => {
            let source = model.template().map(ChatTemplate::source).unwrap_or_default();
            let (begin, end) = format.reasoning(source)?;
            (after(model, begin), end)
        }
    };
    let options = EncodeOptions { add_special: false, parse_special: true };
    let forced = model.tokenizer().encode(end, options);
    Some(Budget { tokens, begin, end: after(model, end), forced })
}

/// How a model writes its answers.
fn format_of(model: &dyn Model) -> AnswerFormat {
    model.template().map_or(AnswerFormat::Hermes, |template| AnswerFormat::of_template(template.source()))
}

impl Turn {
    /// A text that goes on as it is. `request` has all but its prompt.
    pub(crate) fn text(model: Arc<dyn Model>, mut request: Request, prompt: &str) -> Turn {
        request.prompt = model.tokenizer().encode_prompt(prompt);
        let format = AnswerFormat::Hermes;
        let prompt = prompt.to_owned();
        Turn { model, request, prompt, format, tools: None, max_calls: None, unsplit: true }
    }

    /// Submits it as so many choices.
    pub(crate) fn start(&self, n: usize) -> Result<Choices, ApiError> {
        let parser = || AnswerParser::new(self.format, self.tools.as_ref(), &self.prompt);
        let reading =
            || Reading { parser: (!self.unsplit).then(parser), calls: self.max_calls.unwrap_or(usize::MAX) };
        Choices::start(&self.model, choices_of(self.request.clone(), n), reading)
    }
}

/// As many requests as choices; each has a seed of its own that follows from the request's.
pub(crate) fn choices_of(request: Request, n: usize) -> impl Iterator<Item = Request> {
    (0..n as u64).map(move |choice| {
        let mut request = request.clone();
        request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(choice));
        request
    })
}

impl Tool {
    /// A function, of a dialect that is not OpenAI's.
    pub(crate) fn function(
        name: String,
        description: Option<String>,
        parameters: Option<Value>,
        strict: bool,
        at: String,
    ) -> Tool {
        let parameters = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
        let mut function = json!({"name": name, "description": description.unwrap_or_default()});
        function["parameters"] = parameters.clone();
        Tool { name, parameters, strict, json: json!({"type": "function", "function": function}), at }
    }
}

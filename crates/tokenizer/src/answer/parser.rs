//! The parser: a state and the text that is not decided yet. A step looks at what is pending and either takes a part of
//! it or waits for more; what it takes never depends on whether more is there.

mod elements;
mod harmony;

use std::mem::take;

use serde_json::{Map, Value};

use super::AnswerEvent::{self, Content, Reasoning, ToolCall};
use super::formats::{Body, Call, Elements, Rules};
use super::gemma;
use super::json::{self, Head, Scan, Stop};

/// White space that may turn out to belong to a marker; of a longer run, the end.
const LONGEST_SPACE: usize = 64;

/// The longest name of a function, and the longest head of a message.
const LONGEST_NAME: usize = 256;

/// Fences that a call without a marker may stand in.
const FENCES: [&str; 4] = ["```json\n", "```tool_code\n", "```tool_call\n", "```\n"];

#[derive(Debug)]
pub(super) struct Parser {
    rules: &'static Rules,
    /// The tools' names, and the types of their parameters; no tools, no calls.
    tools: Map<String, Value>,
    state: State,
    pending: String,
    /// Markup that turns into content if no call follows.
    markup: String,
    /// White space before the next text belongs to a marker.
    skip_space: bool,
    /// Do not try again before this much is pending.
    retry_at: usize,
    calls: usize,
    /// The name of the last call.
    function: String,
    events: Vec<AnswerEvent>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Before anything else: a call without a marker?
    Start,
    Text,
    /// Up to this marker.
    Reasoning(&'static str),
    /// Before a call.
    Call(Place),
    /// Within arguments, which are a JSON value; then the ends of so many objects.
    Arguments(Place, Scan, usize),
    /// After the arguments.
    Tail(Place, usize),
    /// Within elements: after the name, and how many parameters there were.
    Elements(Place, &'static Elements, usize),
    /// Harmony: before a message's text.
    Header,
    /// Harmony: a message's text.
    Message(Channel),
}

/// Where a call stands.
#[derive(Clone, Copy, Debug)]
struct Place {
    body: Body,
    close: &'static str,
    in_array: bool,
    /// Calls found in here.
    found: usize,
    /// Without a marker: only tools that were offered.
    bare: bool,
}

#[derive(Clone, Copy, Debug)]
enum Channel {
    Final,
    Analysis,
    Tool,
}

/// What a step came to.
enum Step {
    /// Something was taken, or the state is another.
    Again,
    /// More text is needed.
    Wait,
}

/// Where the first marker in a text is.
enum Found {
    /// A marker, and where it begins.
    Marker(usize, &'static str),
    /// From here on, the text may be the beginning of one.
    Perhaps(usize),
    None,
}

impl Parser {
    pub(super) fn new(rules: &'static Rules, tools: Option<&Value>, prompt: &str) -> Parser {
        let tools: Map<String, Value> =
            tools.and_then(Value::as_array).into_iter().flatten().filter_map(tool).collect();
        let within = rules.within_reasoning(prompt);
        let state = match within {
            _ if rules.harmony => State::Header,
            Some(close) => State::Reasoning(close),
            None => State::Start,
        };
        Parser {
            rules,
            tools,
            state,
            pending: String::new(),
            markup: String::new(),
            skip_space: within.is_some(),
            retry_at: 0,
            calls: 0,
            function: String::new(),
            events: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<AnswerEvent> {
        self.pending.push_str(text);
        if self.pending.len() >= self.retry_at {
            while !self.pending.is_empty() && matches!(self.step(false), Step::Again) {}
        }
        take(&mut self.events)
    }

    pub(super) fn finish(mut self) -> Vec<AnswerEvent> {
        while !self.pending.is_empty() && matches!(self.step(true), Step::Again) {}
        self.close();
        self.events
    }

    /// What is left when no more text comes.
    fn close(&mut self) {
        let rest = take(&mut self.pending);
        match self.state {
            State::Reasoning(_) => self.reasoning(&rest),
            State::Arguments(..) | State::Message(Channel::Tool) => self.arguments(&rest),
            State::Message(Channel::Analysis) => self.reasoning(&rest),
            State::Elements(_, _, parameters) => {
                // What was cut off is no parameter; the object is closed.
                self.arguments(if parameters == 0 { "{}" } else { "}" });
                self.content(rest.trim());
            }
            // Brackets and fences that were not closed are no text.
            State::Tail(..) if rest.trim_matches(['}', ']', '`', ' ', '\n']).is_empty() => {}
            State::Call(place) if place.found > 0 => self.content(rest.trim_start()),
            _ => {
                let markup = take(&mut self.markup);
                self.content(&(markup + &rest));
            }
        }
    }

    fn step(&mut self, end: bool) -> Step {
        match self.state {
            State::Start => self.start(),
            State::Text => self.text(end),
            State::Reasoning(close) => self.reason(close, end),
            State::Call(place) => self.call(place, end),
            State::Arguments(place, scan, depth) => self.stream_arguments(place, scan, depth),
            State::Tail(place, depth) => self.tail(place, depth, end),
            State::Elements(place, elements, parameters) => self.parameter(place, elements, parameters),
            State::Header => self.header(end),
            State::Message(channel) => self.message(channel, end),
        }
    }

    fn enter(&mut self, state: State) -> Step {
        self.state = state;
        self.retry_at = 0;
        Step::Again
    }

    /// Waits, and longer the more there is to read again.
    fn wait(&mut self) -> Step {
        if self.pending.len() > 1024 {
            self.retry_at = self.pending.len() + self.pending.len() / 4;
        }
        Step::Wait
    }

    fn start(&mut self) -> Step {
        if !self.rules.bare || self.tools.is_empty() {
            return self.enter(State::Text);
        }
        let text = self.pending.trim_ascii_start();
        let fence = FENCES.into_iter().find(|fence| text.starts_with(fence));
        let body = text.strip_prefix(fence.unwrap_or_default()).unwrap_or(text);
        if fence.is_none() && FENCES.iter().any(|fence| fence.starts_with(text)) {
            return self.wait(); // That includes no text at all.
        }
        match body.trim_ascii_start().bytes().next() {
            None => self.wait(),
            Some(b'{' | b'[') => {
                let taken = self.pending.len() - body.len();
                self.markup = self.pending.drain(..taken).collect();
                let close = if fence.is_some() { "```" } else { "" };
                let body = Body::Json(None);
                self.enter(State::Call(Place { body, close, in_array: false, found: 0, bare: true }))
            }
            Some(_) => self.enter(State::Text),
        }
    }

    /// Content, up to a marker.
    fn text(&mut self, end: bool) -> Step {
        let rules = self.rules;
        let calls: &'static [Call] = if self.tools.is_empty() { &[] } else { rules.calls };
        let markers = rules.reasoning.iter().map(|(open, _)| *open).chain(calls.iter().map(|call| call.open));
        let markers: Vec<&'static str> = markers.chain(rules.silent.iter().copied()).collect();
        let found = find(&self.pending, &markers);
        let Some((marker, space)) = self.take_text(found, end, Parser::content) else { return Step::Wait };
        self.pending.drain(..marker.len());
        self.skip_space = true;
        if let Some((_, close)) = rules.reasoning.iter().find(|(open, _)| *open == marker) {
            return self.enter(State::Reasoning(close));
        }
        let Some(call) = calls.iter().find(|call| call.open == marker) else { return Step::Again };
        self.markup = space + marker;
        self.skip_space = false;
        let place = Place { body: call.body, close: call.close, in_array: false, found: 0, bare: false };
        self.enter(State::Call(place))
    }

    fn reason(&mut self, close: &'static str, end: bool) -> Step {
        let found = find(&self.pending, &[close]);
        let Some((marker, _)) = self.take_text(found, end, Parser::reasoning) else { return Step::Wait };
        self.pending.drain(..marker.len());
        self.skip_space = true;
        self.enter(State::Start)
    }

    /// Emits the pending text before what was found, but for white space at its end. Returns the marker and the white
    /// space before it, if one was found.
    fn take_text(
        &mut self,
        found: Found,
        end: bool,
        emit: fn(&mut Parser, &str),
    ) -> Option<(&'static str, String)> {
        let (at, marker) = match found {
            Found::Marker(at, marker) => (at, Some(marker)),
            Found::Perhaps(at) if !end => (at, None),
            _ => (self.pending.len(), None),
        };
        let mut text: String = self.pending.drain(..at).collect();
        if self.skip_space {
            let trimmed = text.trim_ascii_start().len();
            text.drain(..text.len() - trimmed);
            self.skip_space = trimmed == 0;
        }
        if end && marker.is_none() {
            emit(self, &text);
            return None;
        }
        let space = (text.len() - text.trim_ascii_end().len()).min(LONGEST_SPACE);
        let space = text.split_off(text.len() - space);
        emit(self, &text);
        match marker {
            Some(marker) => Some((marker, space)),
            None => {
                self.pending.insert_str(0, &space);
                None
            }
        }
    }

    fn content(&mut self, text: &str) {
        if let (false, Some(Content(last))) = (text.is_empty(), self.events.last_mut()) {
            last.push_str(text);
        } else if !text.is_empty() {
            self.events.push(Content(text.to_owned()));
        }
    }

    fn reasoning(&mut self, text: &str) {
        if let (false, Some(Reasoning(last))) = (text.is_empty(), self.events.last_mut()) {
            last.push_str(text);
        } else if !text.is_empty() {
            self.events.push(Reasoning(text.to_owned()));
        }
    }

    /// More of the last call's arguments.
    fn arguments(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let index = self.calls.saturating_sub(1);
        if let Some(ToolCall { arguments, .. }) = self.events.last_mut() {
            arguments.push_str(text);
        } else {
            self.events.push(ToolCall { index, name: None, arguments: text.to_owned() });
        }
    }

    /// A call begins.
    fn begin(&mut self, name: &str) {
        self.markup.clear();
        self.events.push(ToolCall {
            index: self.calls,
            name: Some(name.to_owned()),
            arguments: String::new(),
        });
        self.calls += 1;
        self.function = name.to_owned();
    }

    /// It was no call: the markup is content, and so is what follows.
    fn no_call(&mut self, place: Place) -> Step {
        let markup = take(&mut self.markup);
        // Of calls that were found, white space and separators are left.
        if place.found == 0 {
            let text = if self.skip_space { markup.trim_ascii_start() } else { &markup };
            self.skip_space &= text.is_empty();
            self.content(text);
        } else {
            self.skip_space = true;
        }
        self.enter(State::Text)
    }

    fn skip(&mut self, bytes: usize) {
        let taken: String = self.pending.drain(..bytes).collect();
        self.markup.push_str(&taken);
    }

    fn call(&mut self, mut place: Place, end: bool) -> Step {
        let text = self.pending.trim_ascii_start();
        self.skip(self.pending.len() - text.len());
        let text = self.pending.as_str();
        if text.is_empty() {
            return self.wait();
        }
        if !place.close.is_empty() && text.starts_with(place.close) {
            self.pending.drain(..place.close.len());
            if place.found == 0 {
                self.markup.push_str(place.close);
            }
            return self.no_call(place);
        }
        if !end && place.close.starts_with(text) {
            return self.wait();
        }
        if place.found > 0 && !matches!(place.body, Body::Json(_)) {
            return self.no_call(place);
        }
        match place.body {
            Body::Named(separator) => self.named(place, separator),
            Body::Elements(elements) => self.element_name(place, elements, ""),
            Body::Gemma(quote) => self.gemma(place, quote),
            Body::Json(elements) => {
                if let Some(elements) = elements.filter(|_| text.starts_with('<')) {
                    return self.element_name(place, elements, elements.call.0);
                }
                match text.as_bytes()[0] {
                    b'{' => self.json(place),
                    b'[' if !place.in_array && place.found == 0 => {
                        place.in_array = true;
                        self.skip(1);
                        self.enter(State::Call(place))
                    }
                    b']' if place.in_array => {
                        place.in_array = false;
                        self.skip(1);
                        self.enter(State::Call(place))
                    }
                    b',' | b';' if place.found > 0 => {
                        self.skip(1);
                        self.enter(State::Call(place))
                    }
                    _ => self.no_call(place),
                }
            }
        }
    }

    fn json(&mut self, mut place: Place) -> Step {
        let is_known = |name: &str| !place.bare || self.tools.contains_key(name);
        match json::head(&self.pending) {
            Err(Stop::Incomplete) => self.wait(),
            Ok(Head::Arguments { name, at, depth }) if is_known(&name) => {
                self.pending.drain(..at);
                self.begin(&name);
                place.found += 1;
                self.enter(State::Arguments(place, Scan::default(), depth))
            }
            Ok(Head::Whole { name, arguments, end }) if is_known(&name) => {
                self.pending.drain(..end);
                self.begin(&name);
                self.arguments(&arguments);
                place.found += 1;
                self.enter(State::Call(place))
            }
            _ => self.no_call(place),
        }
    }

    fn stream_arguments(&mut self, place: Place, mut scan: Scan, depth: usize) -> Step {
        let length = scan.run(&self.pending);
        let text: String = self.pending.drain(..length).collect();
        self.arguments(&text);
        if scan.is_done() {
            return self.enter(State::Tail(place, depth));
        }
        self.state = State::Arguments(place, scan, depth);
        Step::Wait
    }

    fn tail(&mut self, place: Place, depth: usize, end: bool) -> Step {
        if depth == 0 && matches!(place.body, Body::Named(_)) {
            // The end of a fence.
            let text = self.pending.trim_ascii_start();
            if !end && "```".starts_with(text) && text != "```" {
                return self.wait();
            }
            let rest = text.strip_prefix("```").map_or(self.pending.len(), str::len);
            self.pending.drain(..self.pending.len() - rest);
            return self.enter(State::Call(place));
        }
        match json::tail(&self.pending, depth) {
            Ok(end) => {
                self.pending.drain(..end);
                self.enter(State::Call(place))
            }
            Err(Stop::Incomplete) => self.wait(),
            Err(Stop::Malformed) => self.enter(State::Call(place)),
        }
    }

    /// A name before a separator.
    fn named(&mut self, mut place: Place, separator: &'static str) -> Step {
        if self.pending.starts_with(['{', '[']) && separator == "[ARGS]" {
            place.body = Body::Json(None);
            return self.enter(State::Call(place));
        }
        let Some((head, mut rest)) = self.pending.split_once(separator) else {
            let longest = LONGEST_NAME + separator.len();
            return if self.pending.len() > longest { self.no_call(place) } else { self.wait() };
        };
        if head.len() > LONGEST_NAME {
            return self.no_call(place);
        }
        let mut name = head.split("[CALL_ID]").next().unwrap_or_default().trim();
        if name == "function" && separator != "[ARGS]" {
            let Some((line, after)) = rest.split_once('\n') else {
                return if rest.len() > LONGEST_NAME { self.no_call(place) } else { self.wait() };
            };
            if line.len() > LONGEST_NAME {
                return self.no_call(place);
            }
            (name, rest) = (line.trim(), after);
        }
        let trimmed = rest.trim_ascii_start();
        if !trimmed.starts_with("```json") && "```json".starts_with(trimmed) {
            return self.wait();
        }
        let rest = trimmed.strip_prefix("```json").unwrap_or(trimmed).trim_ascii_start();
        if rest.is_empty() {
            return self.wait();
        }
        if !rest.starts_with('{') || !is_name(name) {
            return self.no_call(place);
        }
        let (name, taken) = (name.to_owned(), self.pending.len() - rest.len());
        self.pending.drain(..taken);
        self.begin(&name);
        place.found += 1;
        self.enter(State::Arguments(place, Scan::default(), 0))
    }

    fn gemma(&mut self, mut place: Place, quote: &'static str) -> Step {
        let Some((text, _)) = self.pending.split_once(place.close) else { return self.wait() };
        let Some((name, arguments)) = gemma::call(text, quote) else { return self.no_call(place) };
        self.pending.drain(..text.len());
        self.begin(&name);
        self.arguments(&arguments);
        place.found += 1;
        self.enter(State::Call(place))
    }
}

/// Name and parameters of a tool.
fn tool(tool: &Value) -> Option<(String, Value)> {
    let function = tool.get("function").unwrap_or(tool);
    let name = function.get("name")?.as_str()?.to_owned();
    let properties = function.get("parameters").and_then(|parameters| parameters.get("properties"));
    Some((name, properties.cloned().unwrap_or_default()))
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= LONGEST_NAME
        && !name.contains(|c: char| c.is_whitespace() || c == '<' || c == '"')
}

/// The first of `markers` in `text`, the longest where several begin.
fn find(text: &str, markers: &[&'static str]) -> Found {
    for (at, _) in text.match_indices(['<', '[']) {
        let rest = &text[at..];
        let marker =
            markers.iter().filter(|marker| rest.starts_with(**marker)).max_by_key(|marker| marker.len());
        // A longer marker may still come of it.
        let longer = markers.iter().any(|marker| marker.len() > rest.len() && marker.starts_with(rest));
        match marker {
            _ if longer => return Found::Perhaps(at),
            Some(marker) => return Found::Marker(at, marker),
            None => {}
        }
    }
    Found::None
}

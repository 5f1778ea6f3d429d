//! The parse of the answer. Expected values are the messages that chat templates rendered
//! (`tests/golden/template/answers.py`).

use minfer_tokenizer::{AnswerEvent, AnswerFormat, AnswerParser};
use proptest::prelude::*;
use serde_json::{Value, json};

const FORMATS: [(&str, AnswerFormat); 8] = [
    ("Hermes", AnswerFormat::Hermes),
    ("QwenXml", AnswerFormat::QwenXml),
    ("Llama3", AnswerFormat::Llama3),
    ("Mistral", AnswerFormat::Mistral),
    ("Gemma", AnswerFormat::Gemma),
    ("Granite", AnswerFormat::Granite),
    ("DeepSeek", AnswerFormat::DeepSeek),
    ("Harmony", AnswerFormat::Harmony),
];

/// What all events of an answer say together.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    content: String,
    reasoning: String,
    /// Name and arguments.
    calls: Vec<(String, String)>,
    /// The order of the parts: the first letter of each kind, and calls by number.
    order: String,
}

impl Answer {
    fn add(&mut self, event: AnswerEvent) {
        let mut mark = |mark: &str| {
            if !self.order.ends_with(mark) {
                self.order.push_str(mark);
            }
        };
        match event {
            AnswerEvent::Content(text) => {
                assert!(!text.is_empty());
                mark("c");
                self.content.push_str(&text);
            }
            AnswerEvent::Reasoning(text) => {
                assert!(!text.is_empty());
                mark("r");
                self.reasoning.push_str(&text);
            }
            AnswerEvent::ToolCall { index, name, arguments } => {
                mark(&index.to_string());
                match name {
                    Some(name) => {
                        assert_eq!(index, self.calls.len());
                        self.calls.push((name, arguments));
                    }
                    None => self.calls[index].1.push_str(&arguments),
                }
            }
        }
    }
}

fn parse<'t>(
    format: AnswerFormat,
    tools: &Value,
    prompt: &str,
    parts: impl Iterator<Item = &'t str>,
) -> Answer {
    let mut parser = AnswerParser::new(format, Some(tools), prompt);
    let mut answer = Answer::default();
    for part in parts {
        parser.push(part).into_iter().for_each(|event| answer.add(event));
    }
    parser.finish().into_iter().for_each(|event| answer.add(event));
    answer
}

/// `text` cut at each of `cuts`, in thousandths of its length.
fn cut<'t>(text: &'t str, cuts: &[usize]) -> Vec<&'t str> {
    let mut places: Vec<usize> =
        cuts.iter().map(|cut| text.floor_char_boundary(text.len() * cut / 1000)).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

fn characters(text: &str) -> impl Iterator<Item = &str> {
    text.split("").filter(|part| !part.is_empty())
}

fn golden() -> (Value, Vec<Value>) {
    let golden = include_str!("../../../tests/golden/template/answers.json");
    let golden: Value = serde_json::from_str(golden).unwrap();
    (golden["tools"].clone(), golden["cases"].as_array().unwrap().clone())
}

fn format(name: &str) -> AnswerFormat {
    FORMATS.iter().find(|(known, _)| *known == name).unwrap().1
}

#[test]
fn what_templates_render_is_parsed_back() {
    let (tools, cases) = golden();
    for case in &cases {
        let text = |key: &str| case[key].as_str().unwrap();
        let answer = text("answer");
        for parts in [vec![answer], characters(answer).collect(), cut(answer, &[200, 400, 500, 700, 950])] {
            let found = parse(format(text("format")), &tools, text("prompt"), parts.into_iter());
            let calls: Vec<Value> = found
                .calls
                .iter()
                .map(|(name, arguments)| {
                    json!([name, serde_json::from_str::<Value>(arguments).expect(arguments)])
                })
                .collect();
            assert_eq!(found.content, text("content"), "{case}");
            assert_eq!(found.reasoning, text("reasoning"), "{case}");
            assert_eq!(Value::from(calls), case["calls"], "{case}");
        }
    }
}

fn tools() -> Value {
    json!([{ "type": "function", "function": { "name": "f", "parameters": {
        "properties": { "s": { "type": "string" }, "n": { "type": "integer" } } } } }])
}

#[test]
fn what_is_no_call_is_content() {
    use AnswerFormat::*;
    for (format, text, content) in [
        (Hermes, "a <tool_call> b", "a <tool_call> b"),
        (Hermes, "<tool_call>\n{\"nome\": 1}\n</tool_call>", "<tool_call>\n{\"nome\": 1}\n</tool_call>"),
        (Hermes, "<tool_call>", "<tool_call>"),
        (Hermes, "<tool_call>{\"name\": \"f\", \"argu", "<tool_call>{\"name\": \"f\", \"argu"),
        (Hermes, "<tool_call></tool_call>x", "<tool_call></tool_call>x"),
        (Hermes, "1 < 2 <tool", "1 < 2 <tool"),
        (QwenXml, "<function=a b>", "<function=a b>"),
        (
            Llama3,
            "{\"name\": \"stranger\", \"parameters\": {}}",
            "{\"name\": \"stranger\", \"parameters\": {}}",
        ),
        (Llama3, "  {\"a\": [1, 2]}\n", "  {\"a\": [1, 2]}\n"),
        (Llama3, "[1, 2]", "[1, 2]"),
        (Mistral, "[TOOL_CALLS]f[ARGS]text", "[TOOL_CALLS]f[ARGS]text"),
        (Mistral, "[TOOL_CALLS]two words", "[TOOL_CALLS]two words"),
        (Gemma, "```json\n{\"a\": 1}\n```", "```json\n{\"a\": 1}\n```"),
        (Gemma, "<|tool_call>call:f{a:1", "<|tool_call>call:f{a:1"),
        (Gemma, "``", "``"),
        (DeepSeek, "<｜tool▁call▁begin｜>f g<｜tool▁sep｜>{}", "<｜tool▁call▁begin｜>f g<｜tool▁sep｜>{}"),
        (Harmony, "Plain.\nText <|", "Plain.\nText <|"),
        (Harmony, "<|start|>assistant<|channel|>", "<|start|>assistant<|channel|>"),
        (Harmony, "<|start|>a\nb<|message|>c", "<|start|>a\nb<|message|>c"),
    ] {
        for parts in [vec![text], characters(text).collect()] {
            let found = parse(format, &tools(), "", parts.into_iter());
            assert_eq!((found.content.as_str(), &found.calls[..]), (content, &[][..]), "{format:?} {text:?}");
        }
    }
}

#[test]
fn calls_are_read_leniently() {
    use AnswerFormat::*;
    let object = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|_| Value::from(text));
    for (format, text, content, calls) in [
        // Arguments first, in a string, missing; the object or the marker not closed; two in one marker.
        (
            Hermes,
            r#"<tool_call>{"arguments": {"s": "}"}, "name": "f"}</tool_call>"#,
            "",
            vec![json!({"s": "}"})],
        ),
        (
            Hermes,
            r#"<tool_call>{"name": "f", "arguments": "{\"n\": 1}"}</tool_call>"#,
            "",
            vec![json!({"n": 1})],
        ),
        (Hermes, r#"<tool_call>{"name": "f"}</tool_call> done"#, "done", vec![json!({})]),
        (Hermes, "x\n<tool_call>{\"name\": \"f\", \"arguments\": {}</tool_call>", "x", vec![json!({})]),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}", "", vec![json!({})]),
        (
            Hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"f\", \"arguments\": {\"n\": 2}}</tool_call>",
            "",
            vec![json!({}), json!({"n": 2})],
        ),
        // Arguments that were cut off are what there is of them.
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a", "", vec![json!("{\"s\": \"a")]),
        // Types come from the tool, or from the value.
        (
            QwenXml,
            "<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n<parameter=x>\nTrue\n</parameter>\n</function>",
            "",
            vec![json!({"s": "12", "n": 12, "x": true})],
        ),
        (QwenXml, "<tool_call><function=f></function></tool_call>", "", vec![json!({})]),
        (
            QwenXml,
            "<tool_call><function=f><parameter=s>a</parameter><parameter=n>1",
            "<parameter=n>1",
            vec![json!({"s": "a"})],
        ),
        (Mistral, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"n\": 1}}]\n", "", vec![json!({"n": 1})]),
        (
            Llama3,
            "\n{\"name\": \"f\", \"parameters\": {\"s\": \"[\"}} and so on",
            "and so on",
            vec![json!({"s": "["})],
        ),
        (
            Harmony,
            " to=functions.f<|channel|>commentary json<|message|>{\"n\": 1}",
            "",
            vec![json!({"n": 1})],
        ),
    ] {
        for parts in [vec![text], characters(text).collect()] {
            let found = parse(format, &tools(), "", parts.into_iter());
            let arguments: Vec<Value> = found.calls.iter().map(|(_, arguments)| object(arguments)).collect();
            assert_eq!((found.content.as_str(), arguments), (content, calls.clone()), "{format:?} {text:?}");
            assert!(found.calls.iter().all(|(name, _)| name == "f"));
        }
    }
}

#[test]
fn without_tools_there_are_no_calls() {
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let mut parser = AnswerParser::new(AnswerFormat::Hermes, None, "");
    let mut events = parser.push(text);
    events.extend(parser.finish());
    assert_eq!(events, [AnswerEvent::Content(text.to_owned())]);
}

#[test]
fn text_comes_at_once_and_no_half_a_marker() {
    let mut parser = AnswerParser::new(AnswerFormat::Hermes, Some(&tools()), "");
    let content = |text: &str| vec![AnswerEvent::Content(text.to_owned())];
    assert_eq!(parser.push("Hello"), content("Hello"));
    assert_eq!(parser.push(" wor"), content(" wor"));
    assert_eq!(parser.push("ld \n<thi"), content("ld"));
    assert_eq!(parser.push("nk"), []);
    assert_eq!(parser.push("er"), content(" \n<thinker"));
    assert_eq!(
        parser.push("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\""),
        [AnswerEvent::ToolCall { index: 0, name: Some("f".to_owned()), arguments: "{\"s\"".to_owned() }]
    );
    let more = |text: &str| vec![AnswerEvent::ToolCall { index: 0, name: None, arguments: text.to_owned() }];
    assert_eq!(parser.push(": \"x"), more(": \"x"));
    assert_eq!(parser.push("\"}}\n</tool_c"), more("\"}"));
    assert_eq!(parser.push("all>\n"), []);
    assert_eq!(parser.finish(), []);
}

#[test]
fn the_format_is_known_by_the_template() {
    use AnswerFormat::*;
    for (template, format) in [
        ("<|im_start|>user <tool_call> {\"name\"", Hermes),
        ("<|im_start|>", Hermes),
        ("<tool_call>\n<function=example>\n<parameter=p>", QwenXml),
        ("<|start_header_id|>assistant<|end_header_id|> <|python_tag|>", Llama3),
        ("[INST] [TOOL_CALLS]", Mistral),
        ("<start_of_turn>model", Gemma),
        ("<|turn>model <|tool_call>", Gemma),
        ("<|start_of_role|>assistant<|end_of_role|> <|tool_call|>", Granite),
        ("<|user|> <|end|> <|assistant|>", Granite),
        ("<｜User｜><｜Assistant｜>", DeepSeek),
        ("<|start|>assistant<|channel|>analysis<|message|>", Harmony),
    ] {
        assert_eq!(AnswerFormat::of_template(template), format, "{template}");
    }
}

/// Text of markers, their parts, and what stands between them.
fn scraps() -> impl Strategy<Value = String> {
    let scraps = [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "f>",
        "</function>",
        "<parameter=",
        "s>",
        "</parameter>",
        "{\"name\": \"f\"",
        ", \"arguments\": ",
        ", \"parameters\": ",
        "{\"s\": \"a\\\"}\"}",
        "}",
        "{",
        "[",
        "]",
        ",",
        "[TOOL_CALLS]",
        "f[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
        "<|tool_call>",
        "call:f{s:",
        "<|\"|>",
        "<tool_call|>",
        "<|channel>thought\n",
        "<channel|>",
        "<|tool_call|>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "function",
        "<｜tool▁sep｜>",
        "f\n```json\n",
        "\n```",
        "<｜tool▁call▁end｜>",
        "<｜DSML｜invoke name=\"",
        "f\">",
        "<｜DSML｜parameter name=\"",
        "s\" string=\"true\">",
        "</｜DSML｜parameter>",
        "</｜DSML｜invoke>",
        "<|channel|>analysis",
        "<|message|>",
        "<|start|>",
        "assistant",
        " to=functions.f",
        "<|end|>",
        "<|call|>",
        "text",
        " ",
        "\n",
        "é語🙂",
        "<",
        "\"",
        "\\",
        "<|im_end|>",
        "```json\n",
        "12",
    ];
    let scrap = prop_oneof![8 => proptest::sample::select(scraps.to_vec()).prop_map(str::to_owned), 1 => "[ -~\n]{0,5}"];
    proptest::collection::vec(scrap, 0..25).prop_map(|scraps| scraps.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cuts_do_not_matter(
        text in scraps(),
        cuts in proptest::collection::vec(0usize..1000, 0..8),
        format in proptest::sample::select(FORMATS.map(|(_, format)| format).to_vec()),
        within in any::<bool>(),
    ) {
        let prompt = if within { "<think>\n" } else { "" };
        let whole = parse(format, &tools(), prompt, std::iter::once(text.as_str()));
        prop_assert_eq!(&parse(format, &tools(), prompt, cut(&text, &cuts).into_iter()), &whole, "{:?}", text);
        prop_assert_eq!(&parse(format, &tools(), prompt, characters(&text)), &whole, "{:?}", text);
    }

    #[test]
    fn cuts_of_real_answers_do_not_matter(
        index in any::<prop::sample::Index>(), cuts in proptest::collection::vec(0usize..1000, 0..8),
        break_at in 0usize..1100,
    ) {
        let (tools, cases) = golden();
        let case = index.get(&cases);
        // Perhaps cut off, as by a limit of tokens.
        let answer = cut(case["answer"].as_str().unwrap(), &[break_at.min(1000)])[0];
        let (format, prompt) = (format(case["format"].as_str().unwrap()), case["prompt"].as_str().unwrap());
        let whole = parse(format, &tools, prompt, std::iter::once(answer));
        prop_assert_eq!(parse(format, &tools, prompt, cut(answer, &cuts).into_iter()), whole);
    }
}

#[test]
fn long_answers_are_no_trap() {
    // Quadratic work would take hours; no time is asserted.
    for (format, text) in [
        (AnswerFormat::Hermes, " ".repeat(2_000_000)),
        (AnswerFormat::Hermes, "<".repeat(500_000)),
        (AnswerFormat::Hermes, format!("<tool_call>{{\"arguments\": \"{}", "a".repeat(2_000_000))),
        (
            AnswerFormat::Hermes,
            format!("<tool_call>{{\"name\": \"f\", \"arguments\": {{\"s\": \"{}", "a".repeat(2_000_000)),
        ),
        (AnswerFormat::QwenXml, format!("<function=f><parameter=s>{}", "a".repeat(2_000_000))),
        (AnswerFormat::Gemma, format!("<|tool_call>call:f{{s:{}", "{s:".repeat(700_000))),
        (AnswerFormat::Harmony, "<|start|>".repeat(200_000)),
    ] {
        let pieces = text.as_bytes().chunks(3).map(|piece| std::str::from_utf8(piece).unwrap());
        let found = parse(format, &tools(), "", pieces);
        assert!(found.content.len() + found.calls.first().map_or(0, |call| call.1.len()) >= text.len() / 2);
    }
}

//! How each family of models marks reasoning and tool calls.

/// How a model writes its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerFormat {
    /// `<think>…</think>`, `<tool_call>{"name", "arguments"}</tool_call>`: Hermes, Qwen 2.5 and 3, SmolLM3, Granite 4, and
    /// whatever is not known otherwise.
    Hermes,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3-Coder, Qwen 3.5.
    QwenXml,
    /// A JSON object of `name` and `parameters`, alone or after `<|python_tag|>`: Llama 3.x. Calls of its built-in
    /// tools, which are Python, are content.
    Llama3,
    /// `[TOOL_CALLS]` and a JSON array, or `[TOOL_CALLS]name[ARGS]{…}`; `[THINK]…[/THINK]`: Mistral.
    Mistral,
    /// `<|tool_call>call:name{key:<|"|>value<|"|>}<tool_call|>`, `<|channel>thought…<channel|>`: Gemma 4, and Gemma's
    /// function-calling models; a JSON object or array of `name` and `parameters`, alone or in a fence: Gemma 1 to 3.
    Gemma,
    /// `<|tool_call|>[{"name", "arguments"}]`, `<think>…</think><response>…</response>`: Granite 3, Phi 3 and 4.
    Granite,
    /// `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>` and the form with a JSON fence; DSML: DeepSeek.
    DeepSeek,
    /// `<|channel|>…<|message|>…`: gpt-oss.
    Harmony,
}

/// A format as data.
#[derive(Debug)]
pub(super) struct Rules {
    /// Beginnings and ends of reasoning.
    pub(super) reasoning: &'static [(&'static str, &'static str)],
    /// Beginnings of tool calls.
    pub(super) calls: &'static [Call],
    /// Markers without a text of their own: ends of turns and of sections.
    pub(super) silent: &'static [&'static str],
    /// An answer may be a call without a marker.
    pub(super) bare: bool,
    /// Messages in channels.
    pub(super) harmony: bool,
}

impl Rules {
    /// What ends the reasoning that a prompt ends within.
    pub(super) fn within_reasoning(&self, prompt: &str) -> Option<&'static str> {
        let prompt = prompt.trim_end();
        self.reasoning.iter().find(|(open, _)| prompt.ends_with(open)).map(|&(_, close)| close)
    }
}

/// A marker, and what follows it.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) open: &'static str,
    /// May end the call; the empty text if nothing does.
    pub(super) close: &'static str,
    pub(super) body: Body,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Body {
    /// JSON objects or an array of them; or elements, if there are some.
    Json(Option<&'static Elements>),
    /// A name, this separator, and a JSON object. After Mistral's names a call's id may stand; DeepSeek's word
    /// `function` before the separator is no name: that follows, and a JSON fence.
    Named(&'static str),
    /// The name follows the marker itself.
    Elements(&'static Elements),
    /// `call:name{…}` with keys without quotes, and this for the quotes of texts.
    Gemma(&'static str),
}

/// A call as elements: a name, and a parameter each with a name.
#[derive(Debug)]
pub(super) struct Elements {
    /// What stands before and after the name.
    pub(super) call: (&'static str, &'static str),
    pub(super) call_end: &'static str,
    /// What stands before and after a parameter's name. After DSML's names stands whether it is a text.
    pub(super) parameter: (&'static str, &'static str),
    pub(super) parameter_end: &'static str,
}

const QWEN: Elements = Elements {
    call: ("<function=", ">"),
    call_end: "</function>",
    parameter: ("<parameter=", ">"),
    parameter_end: "</parameter>",
};
const DSML: Elements = Elements {
    call: ("<｜DSML｜invoke name=\"", "\">"),
    call_end: "</｜DSML｜invoke>",
    parameter: ("<｜DSML｜parameter name=\"", ">"),
    parameter_end: "</｜DSML｜parameter>",
};

const THINK: (&str, &str) = ("<think>", "</think>");
const CHATML_ENDS: &[&str] = &["<|im_end|>", "<|endoftext|>", "<|end_of_text|>"];

static HERMES: Rules = Rules {
    reasoning: &[THINK],
    calls: &[Call { open: "<tool_call>", close: "</tool_call>", body: Body::Json(Some(&QWEN)) }],
    silent: CHATML_ENDS,
    bare: false,
    harmony: false,
};
static QWEN_XML: Rules = Rules {
    calls: &[
        Call { open: "<tool_call>", close: "</tool_call>", body: Body::Json(Some(&QWEN)) },
        // The first marker is often left out.
        Call { open: "<function=", close: "</tool_call>", body: Body::Elements(&QWEN) },
    ],
    ..HERMES_BASE
};
const HERMES_BASE: Rules =
    Rules { reasoning: &[THINK], calls: &[], silent: CHATML_ENDS, bare: false, harmony: false };
static LLAMA3: Rules = Rules {
    calls: &[Call { open: "<|python_tag|>", close: "", body: Body::Json(None) }],
    silent: &["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"],
    bare: true,
    ..HERMES_BASE
};
static MISTRAL: Rules = Rules {
    reasoning: &[("[THINK]", "[/THINK]"), THINK],
    calls: &[Call { open: "[TOOL_CALLS]", close: "", body: Body::Named("[ARGS]") }],
    silent: &[],
    ..HERMES_BASE
};
static GEMMA: Rules = Rules {
    reasoning: &[("<|channel>thought", "<channel|>"), THINK],
    calls: &[
        Call { open: "<|tool_call>", close: "<tool_call|>", body: Body::Gemma("<|\"|>") },
        Call { open: "<start_function_call>", close: "<end_function_call>", body: Body::Gemma("<escape>") },
    ],
    silent: &["<turn|>", "<end_of_turn>", "<eos>", "<|tool_response>", "<start_function_response>"],
    bare: true,
    ..HERMES_BASE
};
static GRANITE: Rules = Rules {
    calls: &[
        Call { open: "<|tool_call|>", close: "<|/tool_call|>", body: Body::Json(None) },
        Call { open: "<tool_call>", close: "</tool_call>", body: Body::Json(None) },
    ],
    silent: &["<response>", "</response>", "<|end_of_text|>", "<|end|>", "<|endoftext|>", "<|im_end|>"],
    ..HERMES_BASE
};
static DEEPSEEK: Rules = Rules {
    calls: &[
        Call {
            open: "<｜tool▁call▁begin｜>",
            close: "<｜tool▁call▁end｜>",
            body: Body::Named("<｜tool▁sep｜>"),
        },
        Call { open: "<｜DSML｜invoke name=\"", close: "", body: Body::Elements(&DSML) },
    ],
    silent: &[
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        "<｜DSML｜tool_calls>",
        "</｜DSML｜tool_calls>",
        "<｜end▁of▁sentence｜>",
    ],
    ..HERMES_BASE
};
static HARMONY: Rules = Rules { reasoning: &[], silent: &[], harmony: true, ..HERMES_BASE };

impl AnswerFormat {
    /// The format that a chat template's text speaks of.
    pub fn of_template(source: &str) -> AnswerFormat {
        let has = |text: &str| source.contains(text);
        if has("<|channel|>") && has("<|message|>") {
            AnswerFormat::Harmony
        } else if has("<｜Assistant｜>") || has("<｜tool▁call▁begin｜>") || has("<｜DSML｜") {
            AnswerFormat::DeepSeek
        } else if has("<start_of_turn>") || has("<|turn>") {
            AnswerFormat::Gemma
        } else if has("[TOOL_CALLS]") || has("[INST]") {
            AnswerFormat::Mistral
        } else if has("<function=") && has("<parameter=") {
            AnswerFormat::QwenXml
        } else if has("<tool_call>") {
            AnswerFormat::Hermes
        } else if has("<|tool_call|>") || has("<|start_of_role|>") || (has("<|assistant|>") && has("<|end|>"))
        {
            AnswerFormat::Granite
        } else if has("<|start_header_id|>") {
            AnswerFormat::Llama3
        } else {
            AnswerFormat::Hermes
        }
    }

    /// What ends the reasoning that the answer to `prompt`, the rendered chat template, begins with; `None` if it does not
    /// begin within one.
    pub fn reasoning_end(self, prompt: &str) -> Option<&'static str> {
        self.rules().within_reasoning(prompt)
    }

    /// What reasoning begins and ends with, in a template's words: the family's markers that the template has, else its
    /// first ones. `None` for a family that has none.
    pub fn reasoning(self, template: &str) -> Option<(&'static str, &'static str)> {
        let markers = self.rules().reasoning;
        markers.iter().find(|(open, _)| template.contains(open)).or(markers.first()).copied()
    }

    pub(super) fn rules(self) -> &'static Rules {
        match self {
            AnswerFormat::Hermes => &HERMES,
            AnswerFormat::QwenXml => &QWEN_XML,
            AnswerFormat::Llama3 => &LLAMA3,
            AnswerFormat::Mistral => &MISTRAL,
            AnswerFormat::Gemma => &GEMMA,
            AnswerFormat::Granite => &GRANITE,
            AnswerFormat::DeepSeek => &DEEPSEEK,
            AnswerFormat::Harmony => &HARMONY,
        }
    }
}

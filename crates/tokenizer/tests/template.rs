//! Chat templates. Expected texts were rendered by transformers 5.24 (`render_jinja_template`) from the same sources.

use minfer_gguf::{Metadata, Value};
use minfer_tokenizer::{ChatTemplate, Error, TemplateInput};
use serde_json::json;

fn conversation() -> TemplateInput {
    TemplateInput {
        messages: json!([
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "Why is the sky blue?" },
        ]),
        add_generation_prompt: true,
        bos: "<s>".into(),
        eos: "</s>".into(),
        now: Some("2024-07-26T12:34:56+02:00[+02:00]".parse().unwrap()),
        ..TemplateInput::default()
    }
}

fn render(source: &str) -> Result<String, Error> {
    ChatTemplate::new(source)?.render(&conversation())
}

#[test]
fn chatml() {
    let source = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
        {{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}\
        {% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}\
        {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    assert_eq!(
        render(source).unwrap(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy is the sky blue?<|im_end|>\n\
         <|im_start|>assistant\n"
    );
    let mut metadata = Metadata::new();
    assert!(ChatTemplate::from_gguf(&metadata).unwrap().is_none());
    metadata.set("tokenizer.chat_template", Value::string(source));
    assert!(ChatTemplate::from_gguf(&metadata).unwrap().is_some());
}

#[test]
fn what_published_templates_use() {
    for (source, expected) in [
        // White space of block lines goes, as trim_blocks and lstrip_blocks say; one newline at the end, too.
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"),
        ("a\r\n{% if true %}\r\nb\r\n{% endif %}\r\n", "a\nb\n"),
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{{ messages[1].content.split(' ')[-1].strip('?').upper() }}", "BLUE"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "2",
        ),
        (
            "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
            "user",
        ),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(1) }}", "[1]"),
        ("{{ tools is none }} {{ documents is defined }} {{ nothing is defined }}", "True True False"),
        (
            "{{ none is iterable }} {{ 'x' is iterable }} {{ {} is sequence }} {{ {} is mapping }}",
            "False True True True",
        ),
        ("{{ strftime_now('%d %b %Y %H:%M') }}", "26 Jul 2024 12:34"),
        (
            "{% for m in messages %}{%- generation -%} {{ m.role }} {% endgeneration %}\n;{% endfor %}",
            "system ;user ;",
        ),
        // Values print as in Python.
        (
            "{{ [1, -3e-7, 1e16, 2.0, none, true, 'a', \"it's\", {'k': {}}] }} {{ 0.00001 | string }}",
            "[1, -3e-07, 1e+16, 2.0, None, True, 'a', \"it's\", {'k': {}}] 1e-05",
        ),
        (
            "{{ [1.5e-7, 'a', none] | join('-') }} {{ messages | join(', ', attribute='role') }}",
            "1.5e-07-a-None system, user",
        ),
        ("{{ messages[0] | tojson }}", "{\"role\": \"system\", \"content\": \"Be brief.\"}"),
        ("{{ \"<é'&\\\"\\n>\" | tojson }}", "\"<é'&\\\"\\n>\""),
        ("{{ 'é🙂' | tojson(ensure_ascii=True) }}", "\"\\u00e9\\ud83d\\ude42\""),
        ("{{ {'b': [1, 2.0, none, true], 'a': {}} | tojson }}", "{\"b\": [1, 2.0, null, true], \"a\": {}}"),
        ("{{ {'b': 1, 'a': [] } | tojson(sort_keys=true, separators=(',', ':')) }}", "{\"a\":[],\"b\":1}"),
        ("{{ {'b': [1, {}]} | tojson(indent=2) }}", "{\n  \"b\": [\n    1,\n    {}\n  ]\n}"),
    ] {
        assert_eq!(render(source).unwrap(), expected, "{source}");
    }
}

#[test]
fn further_variables_come_from_the_caller() {
    let template = ChatTemplate::new("{{ enable_thinking }} {{ tools[0].name }}").unwrap();
    let mut input = conversation();
    input.kwargs.insert("enable_thinking".into(), json!(false));
    input.tools = Some(json!([{ "name": "f" }]));
    assert_eq!(template.render(&input).unwrap(), "False f");
}

#[test]
fn a_template_that_does_not_parse_names_the_line_and_the_construct() {
    let error = ChatTemplate::new("ok\n{% for m in messages %}\n{{ m. }}\n{% endfor %}").unwrap_err();
    let Error::TemplateSyntax { line, construct, .. } = &error else { panic!("{error}") };
    assert_eq!((*line, construct.as_str()), (3, "{{ m. }}"));
    let error = ChatTemplate::new("{% nonesuch %}").unwrap_err().to_string();
    assert!(error.contains("line 1") && error.contains("nonesuch"), "{error}");
}

#[test]
fn a_template_that_fails_names_the_line_and_the_construct() {
    let error = render("a\n{{ messages.nothing.more }}").unwrap_err();
    let Error::TemplateRender { line, construct, .. } = &error else { panic!("{error}") };
    assert_eq!((*line, construct.as_str()), (2, "{{ messages.nothing.more }}"));
}

#[test]
fn unknown_names_are_found_before_a_conversation_is() {
    for (source, detail) in [
        ("{{ 'x'\n | nonesuch }}", "line 2: unknown filter `nonesuch`"),
        ("\n\n{% if x is nonesuch %}{% endif %}", "line 3: unknown test `nonesuch`"),
        ("{% for m in nonesuch(1) %}{% endfor %}", "line 1: unknown function `nonesuch`"),
    ] {
        let error = ChatTemplate::new(source).unwrap_err().to_string();
        assert!(error.contains(detail) && error.contains("nonesuch"), "{error}");
    }
    // What may never be reached is refused when it is.
    let template =
        ChatTemplate::new("{% if tools %}{{ tools | nonesuch }}{% else %}fine{% endif %}").unwrap();
    assert_eq!(template.warnings().len(), 1);
    assert_eq!(template.render(&conversation()).unwrap(), "fine");
    let with_tools = TemplateInput { tools: Some(json!([1])), ..conversation() };
    let error = template.render(&with_tools).unwrap_err().to_string();
    assert!(error.contains("nonesuch") && error.contains("line 1"), "{error}");
    // Templates ask whether a function is there.
    render("{% if nonesuch is defined %}{{ nonesuch() }}{% endif %}").unwrap();
}

#[test]
fn messages_are_handed_on_as_apply_chat_template_does() {
    let source = "{% for m in messages %}{{ m | tojson }}{% endfor %}";
    let template = ChatTemplate::new(source).unwrap();
    let messages = json!([{ "role": "assistant", "content": null, "reasoning": "hm" }]);
    let text = template.render(&TemplateInput { messages, ..conversation() }).unwrap();
    assert_eq!(
        text,
        r#"{"thinking": "hm", "role": "assistant", "reasoning": "hm", "reasoning_content": "hm"}"#
    );
}

#[test]
fn a_template_may_refuse_a_conversation() {
    let error =
        render("{% macro f() %}{{ raise_exception('System role not supported') }}{% endmacro %}{{ f() }}");
    let Err(Error::TemplateRaised { message }) = error else { panic!("{error:?}") };
    assert_eq!(message, "System role not supported");
}

#[test]
fn a_template_cannot_run_forever_or_take_all_memory() {
    for source in [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 100000000000 }}",
        "{% set ns = namespace(s='x') %}{% for i in range(200) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{{ {'a': 1} | tojson(indent=1000000000) }}",
    ] {
        assert!(matches!(render(source), Err(Error::TemplateRender { .. })), "{source}");
    }
}

/// Made by `tests/golden/template/constructs.py`, by transformers.
#[test]
fn constructs_render_as_in_python() {
    let golden = include_str!("../../../tests/golden/template/constructs.json");
    let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
    let input = TemplateInput {
        messages: golden["messages"].clone(),
        tools: Some(golden["tools"].clone()),
        add_generation_prompt: true,
        bos: "<BOS>".into(),
        eos: "<EOS>".into(),
        now: Some("2024-07-26T12:00:00+00:00[+00:00]".parse().unwrap()),
        ..TemplateInput::default()
    };
    let mut wrong = Vec::new();
    for row in golden["constructs"].as_array().unwrap() {
        let source = row[0].as_str().unwrap();
        let found = ChatTemplate::new(source).and_then(|template| template.render(&input));
        match (row[1].as_str(), found) {
            (Some(expected), Ok(found)) if expected == found => {}
            (None, Err(_)) => {}
            (expected, found) => {
                wrong.push(format!("{source:?}\n  expected {expected:?}\n  found    {found:?}"))
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn long_sources_neither_overflow_the_stack_nor_are_taken() {
    const ROOM: usize = 128 << 10;
    let fill = |begin: &str, part: &str, end: &str| {
        let times = (ROOM - begin.len() - end.len()) / part.len();
        format!("{begin}{}{end}", part.repeat(times))
    };
    for (begin, part, end) in [
        ("{{ ", "1+", "1 }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ ", "not ", "1 }}"),
        ("{{ ", "1~", "1 }}"),
        ("{{ x", ".y", " }}"),
        ("{{ x", "[0]", " }}"),
        ("{{ x", "()", " }}"),
        ("{{ 'x'", "|upper", " }}"),
        ("{{ x", " is odd", " }}"),
        ("{{ ", "1 if 1 else ", "1 }}"),
        ("{{ ", "1 if x else ", "1 }}"),
        ("{{ ", "1 and ", "1 }}"),
        ("{{ ", "x<", "1 }}"),
        ("{{ ", "2**", "1 }}"),
        ("{{ ", "(", ""),
        ("{{ ", "[", ""),
        ("{% if 0 %}", "{% elif 0 %}", "{% endif %}"),
        ("", "{% if 1 %}", ""),
    ] {
        // Some are refused for other reasons. That the process goes on is the point.
        let _ = render(&fill(begin, part, end));
        // As long as a tag may be.
        let _ = render(&format!("{begin}{}{end}", part.repeat(1000)));
    }
    let error = render(&fill("{{ ", "1~", "1 }}")).unwrap_err().to_string();
    assert!(error.contains("the limit is 4096"), "{error}");
    assert!(matches!(
        render(&"x".repeat(ROOM + 1)),
        Err(Error::TemplateSize { found, limit }) if (found, limit) == (ROOM + 1, ROOM)
    ));
}

#[test]
fn deep_values_are_compared_and_dropped() {
    let nest = "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(40000) %}\
        {% set ns.l = [ns.l] %}{% set ns.m = [ns.m] %}{% endfor %}";
    assert_eq!(render(&format!("{nest}{{{{ ns.l == ns.m }}}}")).unwrap(), "True");
    for print in ["{{ ns.l }}", "{{ ns.l|tojson }}"] {
        let error = render(&format!("{nest}{print}")).unwrap_err().to_string();
        assert!(error.contains("nested too deeply"), "{error}");
    }
    let error = render(&nest.replace("40000", "99999")).unwrap_err().to_string();
    assert!(error.contains("fuel"), "{error}");
}

#[test]
fn texts_have_a_limit() {
    let share = "{% set ns = namespace(l=['abc'], s='ab') %}{% for i in range(60) %}\
        {% set ns.l = [ns.l, ns.l] %}{% endfor %}";
    for print in [
        "{{ ns.l }}",
        "{{ ns.l|tojson }}",
        "{{ ns.l|string }}",
        "{{ [ns.l]|join }}",
        "{{ raise_exception(ns.l) }}",
        "{% set s = 'x' * 1000000 %}{% for i in range(40) %}{{ s }}{% endfor %}",
    ] {
        let error = render(&format!("{share}{print}")).unwrap_err().to_string();
        assert!(error.contains("more than 32 MiB"), "{print}: {error}");
    }
    let doubled =
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
    assert!(render(doubled).unwrap_err().to_string().contains("fuel"));
}

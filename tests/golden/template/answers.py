#!/usr/bin/env python3
"""Assistant turns as chat templates render them, to parse back.

The templates are those of make.py, and the same packages were used. Usage: answers.py FOLDER, which writes answers.json
beside this script: `[{"template", "format", "prompt", "answer", "content", "reasoning", "calls": [[name, arguments]]}]`,
where `prompt` is the end of the text before the assistant's turn and `answer` the turn with the markers that end it.
Templates that do not render calls or reasoning have the form that their system prompt asks for, in `WRITTEN`.
"""
import json
import pathlib
import sys

from make import TOOLS, call, chat_template_utils

HERE = pathlib.Path(__file__).resolve().parent
# Template: format, and what begins the assistant's turn.
RENDERED = {
    "Qwen-Qwen2.5-7B-Instruct": ("Hermes", "<|im_start|>assistant\n"),
    "Qwen-Qwen3-0.6B": ("Hermes", "<|im_start|>assistant\n"),
    "Qwen3-Coder": ("QwenXml", "<|im_start|>assistant\n"),
    "Qwen3.5-4B": ("QwenXml", "<|im_start|>assistant\n"),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("Hermes", "<|im_start|>assistant\n"),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("Hermes", "<|im_start|>assistant\n"),
    "ibm-granite-granite-4.0": ("Hermes", "<|start_of_role|>assistant<|end_of_role|>"),
    "ibm-granite-granite-4.1": ("Hermes", "<|start_of_role|>assistant<|end_of_role|>"),
    "meta-llama-Llama-3.1-8B-Instruct": ("Llama3", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    "meta-llama-Llama-3.2-3B-Instruct": ("Llama3", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    "meta-llama-Llama-3.3-70B-Instruct": ("Llama3", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("Mistral", "[/INST]"),
    "Mistral-Small-3.2-24B-Instruct-2506": ("Mistral", "[/INST]"),
    "unsloth-mistral-Devstral-Small-2507": ("Mistral", "[/INST]"),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("Mistral", "[/INST]"),
    "google-gemma-4-31B-it": ("Gemma", "<|turn>model\n"),
    "google-gemma-4-31B-it-interleaved": ("Gemma", "<|turn>model\n"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("DeepSeek", "<\uff5cAssistant\uff5c>"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("DeepSeek", "<\uff5cAssistant\uff5c>"),
    "deepseek-ai-DeepSeek-V3.1": ("DeepSeek", "<\uff5cAssistant\uff5c>"),
    "deepseek-ai-DeepSeek-V3.2": ("DeepSeek", "<\uff5cAssistant\uff5c>"),
    "deepseek-ai-DeepSeek-V4": ("DeepSeek", "<\uff5cAssistant\uff5c>"),
    "openai-gpt-oss-120b": ("Harmony", "<|start|>assistant"),
    "google-gemma-2-2b-it": ("Gemma", "<start_of_turn>model\n"),
    "HuggingFaceTB-SmolLM3-3B": ("Hermes", "<|im_start|>assistant\n"),
    "microsoft-Phi-3.5-mini-instruct": ("Granite", "<|assistant|>\n"),
    "ibm-granite-granite-3.3-2B-Instruct": ("Granite", "<|start_of_role|>assistant<|end_of_role|>"),
}
ONE = [["get_weather", {"location": "Paris, \"FR\"", "days": 2}]]
TWO = ONE + [["add", {"numbers": [1, 2.5, -3e-7], "options": {"round": "up}]"}}]]
JSON = json.dumps
WRITTEN = [
    ("Granite", "", "<|tool_call|>" + JSON([{"name": name, "arguments": args} for name, args in TWO]), "", "", TWO),
    ("Granite", "", "<think>Hm.</think><response>Four.</response>", "Four.", "Hm.", []),
    ("Granite", "", "<|tool_call|>" + JSON([{"name": name, "arguments": args} for name, args in ONE]) + "<|/tool_call|><|end|>", "", "", ONE),
    ("Hermes", "", "<think>\nHm.\n</think>\n<tool_call>\n" + JSON({"name": "add", "arguments": TWO[1][1]}) + "\n</tool_call>", "", "Hm.", TWO[1:]),
    ("Gemma", "", "```json\n" + JSON({"name": "get_weather", "parameters": ONE[0][1]}, indent=1) + "\n```", "", "", ONE),
    ("Gemma", "", "<start_function_call>call:get_weather{days:2,location:<escape>Paris, \"FR\"<escape>}<end_function_call>", "", "", ONE),
    ("Llama3", "", "<|python_tag|>" + JSON({"name": "get_weather", "parameters": ONE[0][1]}) + "<|eom_id|>", "", "", ONE),
    ("Llama3", "", "; ".join(JSON({"name": name, "parameters": args}) for name, args in TWO), "", "", TWO),
    ("Llama3", "", JSON({"type": "function", "function": {"name": "get_weather", "parameters": ONE[0][1]}}), "", "", ONE),
    ("Mistral", "", "[THINK]Hm.[/THINK]Four.", "Four.", "Hm.", []),
    ("Harmony", "<|start|>assistant", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Look:<|end|>"
     "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + JSON(ONE[0][1]) + "<|call|>", "Look:", "Hm.", ONE),
    ("DeepSeek", "<\uff5cAssistant\uff5c><think>\n", "Hm.\n</think>\n\nFour.", "Four.", "Hm.", []),
]


def messages():
    def assistant(content, reasoning=None, calls=()):
        message = {"role": "assistant", "content": content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [call(name, args, i + 1) for i, (name, args) in enumerate(calls)]
        return message, content, reasoning or "", calls
    yield assistant("Four, <b>really</b>: a[0] < 5.")
    yield assistant("", None, ONE)
    yield assistant("Let me look.", None, ONE)
    yield assistant("", None, TWO)
    yield assistant("", "Two and two\nis four.", ONE)
    yield assistant("Four.", "Two and two\nis four.")


def main():
    rows = []
    for name, (format, header) in RENDERED.items():
        source = (pathlib.Path(sys.argv[1]) / f"{name}.jinja").read_text()
        for message, content, reasoning, calls in messages():
            try:
                text = chat_template_utils.render_jinja_template(
                    [[{"role": "user", "content": "Well?"}, message]], tools=TOOLS, chat_template=source,
                    add_generation_prompt=False, bos_token="", eos_token="</s>")[0][0]
            except Exception:
                continue  # Two calls at once, say.
            prompt, _, answer = text.rpartition(header) if format != "Harmony" else text.partition(header)
            # A template that leaves something out is no reference for it.
            if (content and content not in answer) or (reasoning and reasoning not in answer) or any(n not in answer for n, _ in calls):
                continue
            answer = answer.rstrip("\n").removesuffix("</s>")
            if format == "Harmony" and calls:
                # gpt-oss thinks aloud before a call, and its template takes content for that.
                content, reasoning = "", content or reasoning
            # Without reasoning, some write the end of it before the answer.
            start = header
            for end in ("<think></think>", "</think>"):
                if answer.startswith(end):
                    start, answer = start + end, answer[len(end):]
            rows.append({"template": name, "format": format, "prompt": start, "answer": answer, "content": content,
                         "reasoning": reasoning, "calls": calls})
    for format, prompt, answer, content, reasoning, calls in WRITTEN:
        rows.append({"template": "", "format": format, "prompt": prompt, "answer": answer, "content": content,
                     "reasoning": reasoning, "calls": calls})
    data = {"tools": TOOLS, "cases": rows}
    body = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    (HERE / "answers.json").write_text('{"tools":' + json.dumps(data["tools"]) + ',\n"cases":[\n' + body + "\n]}\n")
    from collections import Counter
    print(len(rows), "answers", Counter(row["format"] for row in rows))


if __name__ == "__main__":
    main()

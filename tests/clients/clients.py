#!/usr/bin/env python3
"""The official Python clients of OpenAI, Anthropic and Ollama against `minfer serve`.

    python3 -m venv venv && venv/bin/pip install openai anthropic ollama
    cargo build --release
    venv/bin/python tests/clients/clients.py target/release/minfer

It starts a server with the default model (which is fetched once) on a free port, and ends it. What a small model says is not
looked at where it is free; what it has to be is.
"""

import json
import subprocess
import sys

import anthropic
import ollama
import openai

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "big": {"type": "boolean"}},
    "required": ["city", "big"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def function(name="weather"):
    return {"name": name, "description": "The weather in a city.", "parameters": SCHEMA}


def check_city(value):
    assert value["city"] in ("Paris", "Rome") and isinstance(value["big"], bool), value


def raises(error, call, *words):
    try:
        call()
    except error as raised:
        assert all(word in str(raised) for word in words), raised
        return raised
    raise AssertionError(f"no {error}")


def openai_chat(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
    model = client.models.list().data[0].id
    chat = lambda **more: client.chat.completions.create(
        **{"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 32, **more})
    whole = chat()
    assert whole.choices[0].message.content, whole
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content and chunks[-1].usage == whole.usage
    format = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    check_city(json.loads(chat(response_format=format, max_tokens=200).choices[0].message.content))
    assert chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content[0].top_logprobs

    tools = [{"type": "function", "function": function()}]
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        called = chat(tools=tools, tool_choice=choice, parallel_tool_calls=False, max_tokens=200).choices[0]
        assert called.finish_reason == "tool_calls" and len(called.message.tool_calls) == 1, called
        check_city(json.loads(called.message.tool_calls[0].function.arguments))
    deltas = chat(tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=200, stream=True)
    arguments = "".join(
        call.function.arguments for c in deltas if c.choices for call in c.choices[0].delta.tool_calls or [])
    check_city(json.loads(arguments))
    call = called.message.tool_calls[0]
    answered = chat(tools=tools, messages=QUESTION + [
        called.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}])
    assert answered.choices[0].message.content

    raises(openai.NotFoundError, lambda: chat(model="gpt-4"), "gpt-4")
    error = raises(openai.BadRequestError, lambda: chat(temperature=-1), "temperature")
    assert raises(openai.BadRequestError, lambda: chat(extra_body={"lora": [1]})).param == "lora", error
    completion = client.completions.create(model=model, prompt="one two three", max_tokens=4, temperature=0)
    assert completion.choices[0].text
    vectors = client.embeddings.create(model=model, input=["The sky is blue.", "The sky is blue."]).data
    assert vectors[0].embedding == vectors[1].embedding and len(vectors[0].embedding) > 100
    floats = client.embeddings.create(model=model, input="The sky is blue.", encoding_format="float").data[0].embedding
    assert max(abs(a - b) for a, b in zip(floats, vectors[0].embedding)) < 1e-6


def openai_responses(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
    model = client.models.list().data[0].id
    create = lambda **more: client.responses.create(
        **{"model": model, "input": "What is the capital of France?", "temperature": 0, "max_output_tokens": 32, **more})
    whole = create()
    assert whole.output_text, whole
    events = list(create(stream=True))
    assert events[0].type == "response.created" and events[-1].response.output_text == whole.output_text
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    with client.responses.stream(model=model, input="Say hello.", max_output_tokens=16) as stream:
        assert stream.get_final_response() if any(e.type == "response.completed" for e in stream) else True
    again = create(input="And of Italy?", previous_response_id=whole.id)
    assert again.usage.input_tokens > whole.usage.input_tokens
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    assert client.responses.input_items.list(whole.id).data[0].content[0].text.startswith("What is")
    client.responses.delete(whole.id)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(whole.id))
    tools = [{"type": "function", "strict": True, **function()}]
    called = create(tools=tools, tool_choice="required", parallel_tool_calls=False, max_output_tokens=200).output[0]
    check_city(json.loads(called.arguments))
    result = {"type": "function_call_output", "call_id": called.call_id, "output": "Sunny."}
    assert create(input=[{"role": "user", "content": "Weather?"}, called.model_dump(), result], tools=tools).output
    format = {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}}
    check_city(json.loads(create(text=format, max_output_tokens=200).output_text))


def anthropic_messages(url):
    client = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)
    model = openai.OpenAI(base_url=f"{url}/v1", api_key="x").models.list().data[0].id
    # Some releases of the client have no temperature of their own.
    create = lambda **more: client.messages.create(
        **{"model": model, "max_tokens": 32, "messages": QUESTION, "extra_body": {"temperature": 0}, **more})
    whole = create(system="Be brief.")
    assert whole.content[0].type == "text" and whole.stop_reason in ("end_turn", "max_tokens"), whole
    with client.messages.stream(model=model, max_tokens=32, messages=QUESTION, system="Be brief.",
                                extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        assert text == whole.content[0].text == stream.get_final_text()
    tools = [{"name": "weather", "description": "The weather.", "input_schema": SCHEMA}]
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}):
        called = create(tools=tools, tool_choice=choice, max_tokens=200)
        assert called.stop_reason == "tool_use", called
        check_city(called.content[0].input)
        with client.messages.stream(model=model, max_tokens=200, messages=QUESTION, tools=tools, tool_choice=choice,
                                    extra_body={"temperature": 0}) as stream:
            assert stream.get_final_message().content[0].input == called.content[0].input
    result = {"type": "tool_result", "tool_use_id": called.content[0].id, "content": "Sunny."}
    assert create(tools=tools, messages=QUESTION + [
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in called.content]},
        {"role": "user", "content": [result]}]).content
    first = whole.content[0].text.split()[1]
    stopped = create(system="Be brief.", stop_sequences=[first])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", first), stopped
    assert client.messages.count_tokens(model=model, messages=QUESTION).input_tokens > 5
    raises(anthropic.NotFoundError, lambda: create(model="claude"), "not_found_error", "claude")
    raises(anthropic.BadRequestError, lambda: create(extra_body={"temperature": -1}), "temperature")


def ollama_all(url):
    client = ollama.Client(host=url)
    model = client.list().models[0].model
    options = {"temperature": 0, "num_predict": 32}
    whole = client.chat(model=model, messages=QUESTION, options=options)
    assert whole.message.content and whole.eval_count and whole.done, whole
    parts = list(client.chat(model=model, messages=QUESTION, options=options, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content and parts[-1].done
    check_city(json.loads(client.chat(model=model, messages=QUESTION, format=SCHEMA).message.content))
    text = client.generate(model=model, prompt="one two three", raw=True, options=options)
    assert text.response and text.done_reason == "length", text
    tools = [{"type": "function", "function": function()}]
    assert client.chat(model=model, messages=QUESTION, tools=tools, options=options).done
    vectors = client.embed(model=model, input=["a", "a"]).embeddings
    assert vectors[0] == vectors[1]
    assert client.embeddings(model=model, prompt="a").embedding == vectors[0]
    shown = client.show(model)
    assert "completion" in shown.capabilities and shown.details.format == "gguf", shown
    error = raises(ollama.ResponseError, lambda: client.chat(model="llama3", messages=QUESTION), "llama3")
    assert error.status_code == 404
    raises(ollama.ResponseError, lambda: client.chat(model=model, messages=QUESTION, options={"temperature": -1}),
           "temperature")


def main():
    command = [sys.argv[1] if len(sys.argv) > 1 else "minfer", "serve", "--port", "0", "--ctx", "2048"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().removeprefix("listening on ").strip()
        assert url, "the server did not start"
        for test in (openai_chat, openai_responses, anthropic_messages, ollama_all):
            test(url)
            print(f"{test.__name__}: ok", flush=True)
    finally:
        server.terminate()
        server.wait(timeout=60)


if __name__ == "__main__":
    main()

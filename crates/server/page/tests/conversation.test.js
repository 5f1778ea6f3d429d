// Conversations, requests, streams. Run: node --test

import assert from "node:assert/strict";
import test from "node:test";

import { add, check, create, exported, extraFields, imported, path, removeUnsaid, requestBody, show, versions }
    from "../conversation.js";
import { apply, speed } from "../generation.js";
import { EventSplitter } from "../sse.js";

const texts = (conversation) => path(conversation).map(({ content }) => content).join(" ");

test("a message that is edited begins a branch, and the other one stays", () => {
    const conversation = create();
    const question = add(conversation, null, { role: "user", content: "Why is the sky\nblue?" });
    const answer = add(conversation, question.id, { role: "assistant", content: "a1" });
    const second = add(conversation, answer.id, { role: "user", content: "q2" });
    add(conversation, second.id, { role: "assistant", content: "a2" });
    assert.equal(conversation.title, "Why is the sky");
    assert.equal(texts(conversation), "Why is the sky\nblue? a1 q2 a2");
    const other = add(conversation, answer.id, { role: "user", content: "q2'" });
    assert.equal(texts(conversation), "Why is the sky\nblue? a1 q2'");
    assert.deepEqual(versions(conversation, other).map(({ content }) => content), ["q2", "q2'"]);
    show(conversation, second.id);
    assert.equal(texts(conversation), "Why is the sky\nblue? a1 q2 a2");
});

test("an answer that failed before it began is taken back, and never sent", () => {
    const conversation = create();
    const question = add(conversation, null, { role: "user", content: "q" });
    const failed = add(conversation, question.id, { role: "assistant", error: "no" });
    add(conversation, failed.id, { role: "user", content: "q2" });
    assert.deepEqual(requestBody(conversation, conversation.leaf, "").messages.map(({ content }) => content), ["q", "q2"]);
    const said = add(conversation, question.id, { role: "assistant", content: "half" });
    conversation.leaf = question.id;
    removeUnsaid(conversation, said);
    assert.ok(conversation.nodes[said.id]);
    removeUnsaid(conversation, failed);
    assert.ok(!conversation.nodes[failed.id]);
});

test("a request has what was set, and nothing else", () => {
    const conversation = create();
    const question = add(conversation, null, { role: "user", content: "q" });
    assert.deepEqual(requestBody(conversation, question.id, ""), {
        messages: [{ role: "user", content: "q" }], stream: true, stream_options: { include_usage: true },
    });
    Object.assign(conversation, { system: "Be brief.", params: { temperature: 0 }, stop: "a\n\nb", extra: '{"min_p": 0.1}' });
    const call = { id: "1", name: "f", arguments: "{}" };
    const answer = add(conversation, question.id, { role: "assistant", reasoning: "hm", calls: [call] });
    const result = add(conversation, answer.id, { role: "tool", callId: "1", content: "2" });
    assert.deepEqual(requestBody(conversation, result.id, "m"), {
        messages: [
            { role: "system", content: "Be brief." },
            { role: "user", content: "q" },
            { role: "assistant", content: "", reasoning_content: "hm",
                tool_calls: [{ id: "1", type: "function", function: { name: "f", arguments: "{}" } }] },
            { role: "tool", content: "2", tool_call_id: "1" },
        ],
        stream: true, stream_options: { include_usage: true }, model: "m", temperature: 0, stop: ["a", "b"], min_p: 0.1,
    });
    for (const [wrong, message] of [["{", /not JSON/], ["[]", /not a JSON object/], ["1", /object/], ["null", /object/],
        ['{"messages": []}', /"messages"/], ['{"n": 2}', /"n"/]]) {
        assert.throws(() => extraFields(wrong), message);
    }
});

test("what is exported can be imported", () => {
    const conversation = create({ system: "s", params: { top_k: 3 } });
    const question = add(conversation, null, { role: "user", content: "q" });
    add(conversation, question.id, { role: "assistant", content: "a", finish: "stop", stats: { completion: 2, exact: true } });
    const [back] = imported(exported([conversation]));
    assert.notEqual(back.id, conversation.id);
    assert.deepEqual(JSON.parse(JSON.stringify({ ...back, id: conversation.id })), JSON.parse(JSON.stringify(conversation)));
});

test("what is broken is refused", () => {
    const file = (conversations, more = {}) => JSON.stringify({ format: "minfer-conversations", version: 1, conversations, ...more });
    const node = { parent: null, role: "user", content: "x", created: 1 };
    for (const [text, message] of [
        ["", /not JSON/], ["[]", /no conversations/], ["{}", /no conversations/], ["null", /no conversations/],
        [file({}), /no conversations/], [file([], { version: 2 }), /version 2/], [file([1]), /Conversation 1/],
        [file([{ id: "a", nodes: [] }]), /broken/],
        [file([{ id: "a", nodes: { x: { ...node, parent: "x" } } }]), /broken/],
        [file([{ id: "a", nodes: { x: { ...node, parent: "y" }, y: { ...node, parent: "x" } } }]), /broken/],
        [file([{ id: "a", nodes: { x: { ...node, role: "wizard" } } }]), /broken/],
        [file([{ id: "a", nodes: { x: { ...node, content: { toString: 1 } } } }]), /broken/],
        [file([{ id: "a", nodes: { x: { ...node, calls: [{}] } } }]), /broken/],
        [file([{ id: "a", nodes: { x: { ...node, stats: { first: "<b>" } } } }]), /broken/],
    ]) {
        assert.throws(() => imported(text), message, text);
    }
    const odd = check(JSON.parse('{"id": "a", "nodes": {}, "title": 1, "params": {"seed": "x", "top_k": 2, "__proto__": {"x": 1}}, "leaf": "z", "more": 1}'));
    assert.deepEqual(JSON.parse(JSON.stringify(odd)),
        { id: "a", title: "", created: 0, updated: 0, system: "", params: { top_k: 2 }, stop: "", extra: "", leaf: null, nodes: {} });
    const proto = check(JSON.parse('{"id": "a", "nodes": {"__proto__": {"parent": null, "role": "user", "content": "x", "created": 1}}}'));
    assert.equal(path(proto).length, 1);
    assert.equal({}.role, undefined);
});

test("chunks become an answer", () => {
    const node = { content: "", stats: { completion: 0, exact: false } };
    const delta = (delta, finish) => ({ choices: [{ index: 0, delta, finish_reason: finish ?? null }] });
    assert.equal(apply(node, delta({ role: "assistant", content: "" })), false);
    assert.equal(apply(node, delta({ reasoning_content: "hm" })), true);
    assert.equal(apply(node, delta({ content: "a" })), true);
    apply(node, delta({ content: "b" }));
    apply(node, delta({ tool_calls: [{ index: 0, id: "1", function: { name: "f", arguments: "{" } }] }));
    apply(node, delta({ tool_calls: [{ index: 0, function: { arguments: "}" } }, { index: 1, id: "2", function: { name: "g", arguments: "" } }] }));
    apply(node, delta({}, "tool_calls"));
    assert.equal(apply(node, { choices: [], usage: { prompt_tokens: 3, completion_tokens: 9, prompt_tokens_details: { cached_tokens: 1 } } }), false);
    assert.deepEqual(node, {
        content: "ab", reasoning: "hm", finish: "tool_calls",
        calls: [{ id: "1", name: "f", arguments: "{}" }, { id: "2", name: "g", arguments: "" }],
        stats: { prompt: 3, completion: 9, cached: 1, exact: true },
    });
    assert.equal(speed({ completion: 11, seconds: 2 }), 5);
    assert.equal(speed({ completion: 1, seconds: 0 }), undefined);
});

test("events come in any pieces", () => {
    const stream = 'data: {"a": "ä"}\n\n: keep alive\n\nevent: x\r\ndata: two\r\ndata:lines\r\n\r\ndata: [DONE]\n\ndata: cut off';
    const expected = ['{"a": "ä"}', "two\nlines", "[DONE]"];
    for (let size = 1; size <= stream.length; size += 1) {
        const splitter = new EventSplitter();
        const found = [];
        for (let i = 0; i < stream.length; i += size) {
            found.push(...splitter.push(stream.slice(i, i + size)));
        }
        assert.deepEqual(found, expected);
    }
});

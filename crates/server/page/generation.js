// An answer under way.

import { ApiError, chat } from "./api.js";

/// Adds a chunk to an answer. True if it brought text.
export function apply(node, chunk) {
    const choice = chunk.choices?.[0];
    if (chunk.usage) {
        node.stats.prompt = chunk.usage.prompt_tokens;
        node.stats.completion = chunk.usage.completion_tokens;
        node.stats.cached = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
        node.stats.exact = true;
    }
    if (!choice) {
        return false;
    }
    if (choice.finish_reason) {
        node.finish = choice.finish_reason;
    }
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
    if (reasoning) {
        node.reasoning = (node.reasoning ?? "") + reasoning;
    }
    if (content) {
        node.content += content;
    }
    for (const { index, id, function: part } of calls ?? []) {
        node.calls ??= [];
        node.calls[index] ??= { id: "", name: "", arguments: "" };
        const call = node.calls[index];
        call.id += id ?? "";
        call.name += part?.name ?? "";
        call.arguments += part?.arguments ?? "";
    }
    return Boolean(content || reasoning || calls?.length);
}

/// Tokens a second between the first one and the last; undefined while there is nothing to measure.
export function speed({ completion, seconds }) {
    return completion > 1 && seconds > 0 ? (completion - 1) / seconds : undefined;
}

/// A page that goes breaks its connections first. It has some milliseconds to be gone in; what is said of a connection just then
/// would be stored as if the server were to blame.
const LEAVING = 1000;
let left = -Infinity;
globalThis.window?.addEventListener("beforeunload", () => {
    left = Date.now();
});

async function stillHere() {
    if (Date.now() - left < LEAVING) {
        await new Promise((resolve) => setTimeout(resolve, LEAVING));
    }
}

export class Generation {
    /// `onChange` is called after each chunk, `onEnd` once, with the error if it is one that the caller has to do
    /// something about. What happened stands in the node.
    constructor(node, { onChange, onEnd }) {
        this.node = node;
        this.onChange = onChange;
        this.onEnd = onEnd;
        this.controller = new AbortController();
    }

    stop() {
        this.controller.abort();
    }

    async run(body, key) {
        const { node } = this;
        const started = performance.now();
        let first = 0;
        node.stats = { completion: 0, exact: false };
        let failure = null;
        try {
            for await (const chunk of chat(body, { key, signal: this.controller.signal })) {
                if (chunk.model) {
                    node.model = chunk.model;
                }
                if (apply(node, chunk)) {
                    const now = performance.now();
                    first ||= now;
                    // About a token each, until the server tells.
                    node.stats.completion += 1;
                    node.stats.first = (first - started) / 1000;
                    node.stats.seconds = (now - first) / 1000;
                }
                this.onChange();
            }
            node.finish ??= "stop";
        } catch (error) {
            if (error.name === "AbortError") {
                node.finish = "stopped";
            } else {
                await stillHere();
                failure = error;
                node.finish = "error";
                node.error = error instanceof ApiError ? error.message : `The page failed: ${error.message}`;
            }
        }
        // A call whose beginning never came.
        node.calls = node.calls?.filter(Boolean);
        this.onEnd(failure);
    }
}

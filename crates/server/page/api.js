// The server's API, as far as the page uses it.

import { events } from "./sse.js";

/// What the server, or the way to it, has against a request. `status` is 0 if no answer came.
export class ApiError extends Error {
    constructor(message, { status = 0, code = null } = {}) {
        super(message);
        this.status = status;
        this.code = code;
    }
}

async function request(path, { key, body, signal }) {
    const headers = { accept: "application/json" };
    if (key) {
        headers.authorization = `Bearer ${key}`;
    }
    if (body) {
        headers["content-type"] = "application/json";
    }
    let response;
    try {
        response = await fetch(path, {
            method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body),
            cache: "no-store", redirect: "error", credentials: "same-origin",
        });
    } catch (error) {
        if (error.name === "AbortError") {
            throw error;
        }
        throw new ApiError("The server cannot be reached. Is it still running?");
    }
    if (!response.ok) {
        throw await refusal(response);
    }
    return response;
}

/// The server's own message, if it has one.
async function refusal(response) {
    const status = response.status;
    const text = await response.text().catch(() => "");
    try {
        const { error } = JSON.parse(text);
        return new ApiError(String(error.message), { status, code: error.code ?? null });
    } catch {
        return new ApiError(`The server answered with status ${status}. ${text.slice(0, 200)}`.trim(), { status });
    }
}

/// The models that may be asked: `{id, context_length}`.
export async function models(key) {
    const response = await request("v1/models", { key });
    const { data } = await response.json();
    return data;
}

/// The chunks of an answer. Ends without an error only if the answer is complete.
export async function* chat(body, { key, signal }) {
    const response = await request("v1/chat/completions", { key, signal, body });
    try {
        for await (const data of events(response.body)) {
            if (data === "[DONE]") {
                return;
            }
            const chunk = JSON.parse(data);
            if (chunk.error) {
                throw new ApiError(String(chunk.error.message), { status: response.status, code: chunk.error.code });
            }
            yield chunk;
        }
    } catch (error) {
        if (error instanceof ApiError || error.name === "AbortError") {
            throw error;
        }
        if (error instanceof SyntaxError) {
            throw new ApiError("The server sent what is no answer.", { status: response.status });
        }
        throw new ApiError("The connection broke before the answer was complete.");
    }
    throw new ApiError("The connection ended before the answer was complete.");
}

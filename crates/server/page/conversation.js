// Conversations. Pure: plain objects, which are stored and exported as they are.
//
// A conversation is a tree of messages, so that nothing is lost when a message is edited or an answer made again: both
// begin a branch. `leaf` is the last message of the branch that is shown.
//
// {id, title, created, updated, system, params, stop, extra, leaf, nodes: {id: message}}
// message: {id, parent, role: "user" | "assistant" | "tool", content, created}, and of answers
// {reasoning, calls: [{id, name, arguments}], model, finish, error, stats}, of results of tools {callId}.

/// Fields of a request that are numbers; `whole` ones are integers.
export const PARAMS = [
    { name: "temperature", label: "Temperature", note: "0 always takes the likeliest token", min: 0, step: 0.1 },
    { name: "top_p", label: "Top-p", note: "the likeliest tokens that have this share", min: 0, max: 1, step: 0.05 },
    { name: "top_k", label: "Top-k", note: "this many of the likeliest tokens; 0: all", min: 0, step: 1, whole: true },
    { name: "min_p", label: "Min-p", note: "tokens with this share of the likeliest", min: 0, max: 1, step: 0.01 },
    { name: "max_tokens", label: "Max tokens", note: "where an answer is cut off", min: 1, step: 1, whole: true },
    { name: "seed", label: "Seed", note: "the same gives the same answer", step: 1, whole: true },
    { name: "repetition_penalty", label: "Repetition penalty", note: "1: none", min: 0, step: 0.05 },
    { name: "frequency_penalty", label: "Frequency penalty", note: "0: none", min: -2, max: 2, step: 0.1 },
    { name: "presence_penalty", label: "Presence penalty", note: "0: none", min: -2, max: 2, step: 0.1 },
];

/// What the page decides.
const RESERVED = ["messages", "model", "stream", "stream_options", "n"];

/// A name that no other has.
export function newId() {
    const bytes = crypto.getRandomValues(new Uint8Array(9));
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/// An empty conversation with the settings of another one.
export function create({ system = "", params = {}, stop = "", extra = "" } = {}) {
    const now = Date.now();
    const settings = { system, params: { ...params }, stop, extra };
    return { id: newId(), title: "", created: now, updated: now, ...settings, leaf: null, nodes: {} };
}

/// Adds a message after another one (null: at the beginning), and shows it.
export function add(conversation, parent, message) {
    const node = { id: newId(), parent, created: Date.now(), content: "", ...message };
    conversation.nodes[node.id] = node;
    conversation.leaf = node.id;
    conversation.updated = node.created;
    if (!conversation.title && node.role === "user") {
        conversation.title = titleOf(node.content);
    }
    return node;
}

/// A title from the first words.
function titleOf(text) {
    const line = text.trim().split("\n", 1)[0].trim();
    return line.length > 60 ? `${line.slice(0, 60).replace(/\s+\S*$/, "")} …` : line;
}

/// The messages that are shown, from the first.
export function path(conversation) {
    const list = [];
    for (let id = conversation.leaf; id !== null; id = conversation.nodes[id].parent) {
        list.push(conversation.nodes[id]);
    }
    return list.reverse();
}

/// The messages that a message is one version of, in the order in which they were made.
export function versions(conversation, node) {
    return Object.values(conversation.nodes).filter((other) => other.parent === node.parent);
}

/// Shows the branch of a message, to its newest end.
export function show(conversation, id) {
    const last = new Map();
    for (const node of Object.values(conversation.nodes)) {
        last.set(node.parent, node.id);
    }
    let leaf = id;
    while (last.has(leaf)) {
        leaf = last.get(leaf);
    }
    conversation.leaf = leaf;
}

/// Takes back an answer in which nothing was said, as there is nothing to lose.
export function removeUnsaid(conversation, node) {
    if (!isSaid(node) && !node.reasoning) {
        delete conversation.nodes[node.id];
    }
}

/// The fields of `extra`. Throws an error that says what is wrong with it.
export function extraFields(text) {
    if (!text.trim()) {
        return {};
    }
    let fields;
    try {
        fields = JSON.parse(text);
    } catch (error) {
        throw new Error(`This is not JSON: ${error.message}`);
    }
    if (fields === null || typeof fields !== "object" || Array.isArray(fields)) {
        throw new Error("This is not a JSON object.");
    }
    const reserved = RESERVED.find((name) => Object.hasOwn(fields, name));
    if (reserved) {
        throw new Error(`"${reserved}" is for the page to set.`);
    }
    return fields;
}

/// The body of the request that asks for what comes after a message (null: the first one).
export function requestBody(conversation, parent, model) {
    const list = path({ ...conversation, leaf: parent });
    const messages = list.filter(isSaid).map(forServer);
    if (conversation.system.trim()) {
        messages.unshift({ role: "system", content: conversation.system });
    }
    const body = { messages, stream: true, stream_options: { include_usage: true }, ...conversation.params };
    if (model) {
        body.model = model;
    }
    const stop = conversation.stop.split("\n").filter((text) => text);
    if (stop.length) {
        body.stop = stop;
    }
    return Object.assign(body, extraFields(conversation.extra));
}

/// An answer that failed before it began was not said.
function isSaid(node) {
    return node.role !== "assistant" || node.content !== "" || node.calls?.length > 0;
}

function forServer(node) {
    const message = { role: node.role, content: node.content };
    if (node.role === "tool") {
        message.tool_call_id = node.callId;
    }
    if (node.calls?.length) {
        message.tool_calls = node.calls.map(({ id, name, arguments: text }) =>
            ({ id, type: "function", function: { name, arguments: text } }));
        if (node.reasoning) {
            message.reasoning_content = node.reasoning;
        }
    }
    return message;
}

/// A file of conversations.
export function exported(conversations) {
    return `${JSON.stringify({ format: "minfer-conversations", version: 1, conversations }, null, 1)}\n`;
}

/// The conversations of a file, each checked and with names of its own. Throws an error that says what is wrong.
export function imported(text) {
    let file;
    try {
        file = JSON.parse(text);
    } catch (error) {
        throw new Error(`The file is not JSON: ${error.message}`);
    }
    if (file?.format !== "minfer-conversations" || !Array.isArray(file.conversations)) {
        throw new Error("The file has no conversations of this page.");
    }
    if (file.version !== 1) {
        throw new Error(`The file is of version ${file.version}; this page reads version 1.`);
    }
    return file.conversations.map((conversation, index) => {
        const checked = check(conversation);
        if (!checked) {
            throw new Error(`Conversation ${index + 1} of the file is broken.`);
        }
        return { ...checked, id: newId() };
    });
}

const isText = (value) => typeof value === "string";
const isOptional = (is) => (value) => value === undefined || value === null || is(value);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isCall = (call) => isObject(call) && isText(call.id) && isText(call.name) && isText(call.arguments);
const MESSAGE = {
    parent: isOptional(isText),
    role: (role) => ["user", "assistant", "tool"].includes(role),
    content: isText,
    created: Number.isFinite,
    reasoning: isOptional(isText),
    calls: isOptional((calls) => Array.isArray(calls) && calls.every(isCall)),
    model: isOptional(isText),
    finish: isOptional(isText),
    error: isOptional(isText),
    callId: isOptional(isText),
    stats: isOptional((stats) => isObject(stats)
        && Object.values(stats).every((value) => Number.isFinite(value) || typeof value === "boolean")),
};

/// A conversation with the fields that are known and of their types; null if it is none. What was stored by another
/// version, or by hand, never gets further than this.
export function check(value) {
    if (!isObject(value) || !isObject(value.nodes) || !isText(value.id)) {
        return null;
    }
    const conversation = {
        id: value.id,
        title: isText(value.title) ? value.title.slice(0, 200) : "",
        created: Number.isFinite(value.created) ? value.created : 0,
        updated: Number.isFinite(value.updated) ? value.updated : 0,
        system: isText(value.system) ? value.system : "",
        params: {},
        stop: isText(value.stop) ? value.stop : "",
        extra: isText(value.extra) ? value.extra : "",
        leaf: null,
        nodes: Object.create(null),
    };
    for (const { name } of PARAMS) {
        if (Number.isFinite(value.params?.[name])) {
            conversation.params[name] = value.params[name];
        }
    }
    for (const [id, node] of Object.entries(value.nodes)) {
        if (!isObject(node) || !Object.entries(MESSAGE).every(([name, is]) => is(node[name]))) {
            return null;
        }
        // A parent comes before its children, so there is no circle.
        if (node.parent && !conversation.nodes[node.parent]) {
            return null;
        }
        const known = Object.keys(MESSAGE).filter((name) => node[name] !== undefined);
        conversation.nodes[id] = { id, ...Object.fromEntries(known.map((name) => [name, node[name]])) };
        conversation.nodes[id].parent = node.parent ?? null;
        conversation.leaf = id;
    }
    if (isText(value.leaf) && conversation.nodes[value.leaf]) {
        conversation.leaf = value.leaf;
    }
    return conversation;
}

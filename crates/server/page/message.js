// One message, as it is shown.

import { copyButton, el, icon, iconButton } from "./dom.js";
import { speed } from "./generation.js";
import { MarkdownView } from "./markdown.js";

const WHO = { user: "You", assistant: "Answer", tool: "Result of a tool" };
const ENDS = {
    length: "Cut off: the limit of tokens or the context is reached.",
    stopped: "Stopped.",
    unfinished: "The page was closed before the answer was complete.",
};

export class MessageView {
    /// `actions` is what can be done: `edit(node, text)`, `again(node)`, `version(id)`, `results(node, texts)`,
    /// `speak(text)`. `live` says that the answer is under way.
    constructor(node, { actions, live }) {
        this.node = node;
        this.actions = actions;
        this.live = live;
        this.content = el("div", { class: node.role === "assistant" ? "markdown" : "plain" });
        this.extras = el("div", { class: "extras" });
        this.foot = el("div", { class: "foot" });
        this.body = el("div", { class: "body" }, this.content, this.extras);
        this.element = el("li", { class: `message ${node.role}`, tabIndex: -1 },
            el("h2", { class: node.role === "tool" ? "who" : "hidden" }, WHO[node.role]), this.body, this.foot);
        this.element.dataset.id = node.id;
        /// How much of the content is shown.
        this.shown = 0;
        if (node.role === "assistant") {
            this.markdown = this.renderer();
        } else {
            this.content.textContent = node.content;
        }
        if (live) {
            this.element.classList.add("live");
            this.wait = el("p", { class: "wait", "aria-hidden": "true" }, el("span"), el("span"), el("span"));
            this.content.before(this.wait);
        }
        this.update();
        if (!live) {
            this.end();
        }
    }

    renderer() {
        return new MarkdownView(this.content, {
            onBlock: (text) => this.live && this.actions.speak(text),
            copyButton: (text) => copyButton("Copy the code", text),
        });
    }

    /// Shows what has been added.
    update() {
        const { node } = this;
        if (this.markdown) {
            this.markdown.append(node.content.slice(this.shown));
            this.shown = node.content.length;
        }
        this.updateReasoning();
        if (this.live) {
            this.updateCalls();
            this.showNumbers();
            if (node.content || node.reasoning || node.calls) {
                this.wait.hidden = Boolean(node.content || node.calls);
            }
        }
    }

    updateReasoning() {
        const { node } = this;
        if (!node.reasoning) {
            return;
        }
        if (!this.reasoning) {
            this.reasoning = { shown: 0, text: el("div", { class: "plain" }), label: el("summary") };
            this.content.before(el("details", { class: "reasoning" }, this.reasoning.label, this.reasoning.text));
        }
        const { text, label } = this.reasoning;
        text.append(node.reasoning.slice(this.reasoning.shown));
        this.reasoning.shown = node.reasoning.length;
        label.textContent = this.live && !node.content && !node.calls ? "Reasoning …" : "Reasoning";
    }

    /// Calls of tools: the name, and the arguments one by one.
    updateCalls() {
        const calls = this.node.calls ?? [];
        const size = calls.reduce((sum, call) => sum + call.name.length + call.arguments.length, 0);
        if (size === this.callsShown || !calls.length) {
            return;
        }
        this.callsShown = size;
        const cards = calls.filter(Boolean).map((call) => el("div", { class: "call" },
            el("p", {}, "Calls ", el("code", {}, call.name)), callArguments(call.arguments)));
        this.calls?.remove();
        this.calls = el("div", { class: "calls" }, ...cards);
        this.extras.prepend(this.calls);
    }

    /// The answer is complete, or was read from the store.
    end() {
        const { node } = this;
        this.markdown?.finish();
        this.live = false;
        this.element.classList.remove("live");
        this.wait?.remove();
        this.updateReasoning();
        this.updateCalls();
        const note = node.role === "assistant" && ENDS[node.finish ?? "unfinished"];
        if (note) {
            this.extras.append(el("p", { class: "note" }, note));
        }
        if (node.error) {
            const again = el("button", { type: "button", onclick: () => this.actions.again(node) }, "Try again");
            this.extras.append(el("div", { class: "failure", role: "alert" }, el("p", {}, node.error), again));
        }
        this.foot.replaceChildren();
        this.showNumbers();
        this.foot.prepend(this.buttons());
    }

    /// Which version it is, among how many.
    setVersions(list) {
        const at = list.findIndex(({ id }) => id === this.node.id);
        this.pager?.remove();
        this.pager = null;
        if (list.length > 1) {
            const go = (to) => () => this.actions.version(list[to].id);
            this.pager = el("span", { class: "versions", role: "group", "aria-label": "Versions" },
                iconButton("left", "Version before", go(at - 1), { disabled: at === 0 }),
                el("span", {}, `${at + 1} of ${list.length}`),
                iconButton("right", "Version after", go(at + 1), { disabled: at === list.length - 1 }));
            this.foot.append(this.pager);
        }
    }

    buttons() {
        const { node, actions } = this;
        const copies = node.content && copyButton("Copy", () => node.content);
        const edit = node.role !== "tool" && node.content && iconButton("edit", "Edit", () => this.edit());
        const again = node.role === "assistant"
            && iconButton("again", "Answer again", () => actions.again(node));
        return el("span", { class: "buttons" }, copies || null, edit || null, again);
    }

    /// Model, number of tokens and speed.
    showNumbers() {
        const { stats, model } = this.node;
        if (this.node.role !== "assistant" || !stats) {
            return;
        }
        const about = stats.exact ? "" : "≈ ";
        const rate = speed(stats);
        const parts = [
            stats.completion ? `${about}${stats.completion} tokens` : null,
            rate === undefined ? null : `${rate.toFixed(1)} tokens/s`,
            stats.first === undefined || this.live ? null : `first after ${stats.first.toFixed(2)} s`,
            this.live ? null : model,
        ];
        this.numbers ??= el("span", { class: "numbers" });
        this.numbers.textContent = parts.filter(Boolean).join(" · ");
        const prompt = stats.exact ? `Prompt: ${stats.prompt} tokens, ${stats.cached} of them from the cache. ` : "";
        this.numbers.title = `${prompt}Speed: between the first token and the last.`;
        if (!this.numbers.isConnected) {
            this.foot.append(this.numbers);
        }
    }

    /// Lets the user change the text.
    edit() {
        const { node, actions } = this;
        const isUser = node.role === "user";
        const field = el("textarea", { value: node.content, "aria-label": "Text of the message" });
        const close = () => {
            form.replaceWith(this.body);
            this.foot.hidden = false;
            this.foot.querySelector("[aria-label=Edit]")?.focus();
        };
        const save = () => {
            close();
            if (field.value.trim() && field.value !== node.content) {
                actions.edit(node, field.value);
            } else if (isUser && field.value.trim()) {
                actions.again(node);
            }
        };
        const form = el("form", { class: "editor", onsubmit: (event) => {
            event.preventDefault();
            save();
        } }, field, el("div", { class: "bar end" },
            el("button", { type: "button", class: "quiet", onclick: close }, "Cancel"),
            el("button", { class: "primary" }, isUser ? "Send" : "Save")));
        field.addEventListener("keydown", (event) => {
            if (event.key === "Escape") {
                event.stopPropagation();
                close();
            } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
                event.preventDefault();
                save();
            }
        });
        this.body.replaceWith(form);
        this.foot.hidden = true;
        field.style.height = `${Math.min(field.scrollHeight + 4, window.innerHeight * 0.6)}px`;
        field.focus();
    }

    /// Asks what the tools said: a field for each call that has no result yet.
    askResults() {
        const { node, actions } = this;
        if (this.results || !node.calls?.length) {
            return;
        }
        const fields = node.calls.map((call) => el("textarea", { rows: 2, spellcheck: false, class: "code" }));
        const labels = node.calls.map((call, i) => el("label", { class: "field" }, `What ${call.name} gives back`, fields[i]));
        this.results = el("form", { class: "results", onsubmit: (event) => {
            event.preventDefault();
            actions.results(node, fields.map((field) => field.value));
        } }, ...labels, el("button", { class: "primary" }, "Send the results"));
        this.extras.append(this.results);
    }

    /// Takes the fields back.
    dropResults() {
        this.results?.remove();
        this.results = null;
    }
}

function callArguments(text) {
    let values;
    try {
        values = JSON.parse(text);
    } catch {
        return el("pre", { tabIndex: 0 }, text);
    }
    if (values === null || typeof values !== "object" || Array.isArray(values)) {
        return el("pre", { tabIndex: 0 }, text);
    }
    const shown = (value) => typeof value === "string" ? value : JSON.stringify(value, null, 2);
    const rows = Object.entries(values).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, shown(value))]);
    return rows.length ? el("dl", {}, ...rows) : el("p", { class: "note" }, "without arguments");
}

/// The sign of an answer under way in the list of conversations.
export const busySign = () => el("span", { class: "busy", role: "img", "aria-label": "answering" }, icon("again"));

// The field where messages are written.

import { autosize, byId } from "./dom.js";

// On a phone Enter is a new line: there is a button to send with.
const touch = matchMedia("(pointer: coarse)");

export class Composer {
    /// `actions`: `send(text)`, which says whether it took the text, `stop()`, `draft(text)`, `editLast()`.
    constructor(actions) {
        this.actions = actions;
        this.field = byId("input");
        this.sendButton = byId("send");
        this.stopButton = byId("stop");
        byId("composer").addEventListener("submit", (event) => {
            event.preventDefault();
            this.send();
        });
        this.stopButton.addEventListener("click", () => actions.stop());
        this.field.addEventListener("input", () => this.changed());
        this.field.addEventListener("keydown", (event) => this.key(event));
        window.addEventListener("resize", () => autosize(this.field));
        const hint = () => {
            byId("hint").textContent = touch.matches ? "" : "Enter sends, Shift+Enter begins a new line";
        };
        touch.addEventListener("change", hint);
        hint();
    }

    key(event) {
        // Enter may choose a word of an input method.
        if (event.isComposing) {
            return;
        }
        if (event.key === "Enter" && !event.shiftKey && !event.altKey && (!touch.matches || event.ctrlKey)) {
            event.preventDefault();
            this.send();
        } else if (event.key === "ArrowUp" && !this.field.value && this.actions.editLast()) {
            event.preventDefault();
        }
    }

    send() {
        const text = this.field.value;
        if (text.trim() && this.actions.send(text)) {
            this.set("");
            this.actions.draft("");
        }
    }

    set(text) {
        this.field.value = text;
        this.show();
    }

    changed() {
        this.show();
        this.actions.draft(this.field.value);
    }

    show() {
        autosize(this.field);
        this.sendButton.disabled = !this.field.value.trim();
    }

    /// Whether an answer is under way, which can be stopped.
    setBusy(busy) {
        const { activeElement } = document;
        this.sendButton.hidden = busy;
        this.stopButton.hidden = !busy;
        if (activeElement === this.sendButton || activeElement === this.stopButton) {
            this.field.focus();
        }
    }

    focus() {
        this.field.focus();
    }
}

// The settings of a conversation, and the theme of the page.

import { byId, el, icon } from "./dom.js";
import { PARAMS, extraFields } from "./conversation.js";

export class Settings {
    /// `changed()` is called when the conversation's settings are others; `changeKey()` when the key shall be.
    constructor({ changed, changeKey }) {
        this.changed = changed;
        this.dialog = byId("settings");
        this.fields = { system: byId("system"), stop: byId("stop-texts"), extra: byId("extra") };
        this.params = PARAMS.map((param) => this.param(param));
        byId("open-settings").addEventListener("click", () => this.open());
        byId("reset").addEventListener("click", () => this.reset());
        byId("change-key").addEventListener("click", () => {
            this.dialog.close();
            changeKey();
        });
        for (const [name, field] of Object.entries(this.fields)) {
            field.addEventListener("input", () => {
                this.conversation[name] = field.value;
                this.checkExtra();
                this.showSet();
                changed();
            });
        }
    }

    param(param) {
        const { name, label, note, min, max, step, whole } = param;
        const id = `param-${name}`;
        const input = el("input", { id, type: "number", placeholder: "default", step: whole ? "1" : "any",
            inputMode: whole && name !== "seed" ? "numeric" : "decimal", "aria-describedby": `${id}-note` });
        input.min = min ?? "";
        input.max = max ?? "";
        // The arrows go in steps; any number can be typed.
        input.addEventListener("keydown", (event) => {
            const direction = { ArrowUp: 1, ArrowDown: -1 }[event.key];
            if (direction && !whole) {
                event.preventDefault();
                const value = Math.max(min, Math.min(max ?? Infinity, (input.valueAsNumber || 0) + direction * step));
                input.value = String(Number(value.toFixed(6)));
                input.dispatchEvent(new Event("input"));
            }
        });
        input.addEventListener("input", () => {
            const valid = input.validity.valid && input.value !== "";
            input.setAttribute("aria-invalid", String(!input.validity.valid));
            error.textContent = input.validationMessage;
            error.hidden = input.validity.valid;
            if (valid) {
                this.conversation.params[name] = input.valueAsNumber;
            } else {
                delete this.conversation.params[name];
            }
            this.showSet();
            this.changed();
        });
        const error = el("span", { class: "error", role: "alert", hidden: true });
        byId("params").append(el("div", { class: "param" }, el("label", { for: id }, label), input,
            el("span", { class: "note", id: `${id}-note` }, note), error));
        return { name, input, error };
    }

    /// Shows those of a conversation.
    show(conversation) {
        this.conversation = conversation;
        for (const [name, field] of Object.entries(this.fields)) {
            field.value = conversation[name];
        }
        for (const { name, input, error } of this.params) {
            input.value = conversation.params[name] ?? "";
            input.setAttribute("aria-invalid", "false");
            error.hidden = true;
        }
        this.checkExtra();
        this.showSet();
    }

    /// Shows on the button whether there are any.
    showSet() {
        const { system, params, stop, extra } = this.conversation;
        const set = system.trim() || stop.trim() || extra.trim() || Object.keys(params).length;
        byId("open-settings").classList.toggle("set", Boolean(set));
    }

    checkExtra() {
        const error = byId("extra-error");
        let message = "";
        try {
            extraFields(this.fields.extra.value);
        } catch (wrong) {
            message = wrong.message;
        }
        error.textContent = message;
        error.hidden = !message;
        this.fields.extra.setAttribute("aria-invalid", String(Boolean(message)));
    }

    open() {
        this.dialog.showModal();
    }

    reset() {
        Object.assign(this.conversation, { system: "", params: {}, stop: "", extra: "" });
        this.show(this.conversation);
        this.changed();
    }
}

const NAMES = { auto: "as the system has it", light: "light", dark: "dark" };

/// The button that goes through the themes.
export function prepareTheme(store) {
    const button = byId("theme");
    const themes = Object.keys(NAMES);
    const set = (theme) => {
        if (theme === "auto") {
            delete document.documentElement.dataset.theme;
        } else {
            document.documentElement.dataset.theme = theme;
        }
        button.replaceChildren(icon(theme));
        button.title = `Theme: ${NAMES[theme]}`;
        button.setAttribute("aria-label", button.title);
        button.dataset.value = theme;
    };
    set(document.documentElement.dataset.theme ?? "auto");
    button.addEventListener("click", () => {
        const next = themes[(themes.indexOf(button.dataset.value) + 1) % themes.length];
        set(next);
        store.setSetting("theme", next);
    });
}

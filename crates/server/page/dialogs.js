// Questions to the user and short news.

import { byId, el } from "./dom.js";

/// How long news with something to do stay, in milliseconds; the pointer or the focus on them holds them.
const STAY = 10_000;

/// Asks for a text; null if the user would rather not.
export function askText(title, value) {
    byId("ask-title").textContent = title;
    const field = byId("ask-value");
    field.value = value;
    return answered(byId("ask"), () => field.value.trim() || null, () => field.select());
}

/// Asks for the API key: `{key, remember}`, or null.
export function askKey(why, { key, remember }) {
    byId("key-why").textContent = why;
    const field = byId("key-value");
    field.value = key;
    byId("key-remember").checked = remember;
    const value = () => ({ key: field.value.trim(), remember: byId("key-remember").checked });
    return answered(byId("key"), value, () => field.focus());
}

function answered(dialog, value, opened) {
    const before = document.activeElement;
    return new Promise((resolve) => {
        dialog.returnValue = "";
        dialog.addEventListener("close", () => {
            resolve(dialog.returnValue === "save" ? value() : null);
            before?.focus();
        }, { once: true });
        dialog.showModal();
        opened();
    });
}

/// Shows short news, with a button that does something about them if `action` is there: `{label, run}`.
export function toast(text, action) {
    const element = el("div", { class: "toast", role: "status" }, el("span", {}, text));
    const remove = () => element.remove();
    if (action) {
        element.append(el("button", { type: "button", onclick: () => {
            remove();
            action.run();
        } }, action.label));
    }
    byId("toasts").replaceChildren(element);
    let timer = setTimeout(remove, STAY);
    for (const hold of ["mouseenter", "focusin"]) {
        element.addEventListener(hold, () => clearTimeout(timer));
    }
    for (const release of ["mouseleave", "focusout"]) {
        element.addEventListener(release, () => {
            clearTimeout(timer);
            timer = setTimeout(remove, STAY);
        });
    }
}

/// Says above the messages what is wrong; null takes it back. `action` is `{label, run}`.
export function notice(text, action) {
    const bar = byId("notice");
    bar.hidden = !text;
    bar.replaceChildren(text ?? "");
    if (text && action) {
        bar.append(el("button", { type: "button", onclick: action.run }, action.label));
    }
}

/// Prepares the dialogs: buttons that cancel, and a click beside one closes it.
export function prepareDialogs() {
    byId("key-cancel").addEventListener("click", () => byId("key").close());
    byId("ask-cancel").addEventListener("click", () => byId("ask").close());
    for (const dialog of document.querySelectorAll("dialog")) {
        dialog.addEventListener("mousedown", (event) => {
            if (event.target === dialog) {
                dialog.close();
            }
        });
    }
}

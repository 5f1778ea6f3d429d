// Keys that do something wherever the focus is.

import { byId, el } from "./dom.js";

const isMac = /Mac|iPhone|iPad/.test(navigator.platform);
const ALT = isMac ? "⌥" : "Alt+";

/// Prepares the keys. `actions`: `new`, `stop` (which says whether there was something to stop), `again`, `edit`,
/// `settings`, `sidebar`, `next(step)`, `focus`.
export function prepareShortcuts(actions) {
    // By the place of the key: with Alt, its character may be another one.
    const alt = {
        KeyN: ["N", "New conversation", actions.new],
        KeyR: ["R", "Answer again", actions.again],
        KeyE: ["E", "Edit the last message", actions.edit],
        KeyB: ["B", "Show or hide the conversations", actions.sidebar],
        KeyS: ["S", "Settings", actions.settings],
        ArrowUp: ["↑", "The conversation before", () => actions.next(-1)],
        ArrowDown: ["↓", "The conversation after", () => actions.next(1)],
    };
    const help = byId("help");
    const others = [["Enter", "Send"], ["Shift+Enter", "New line"], ["Escape", "Stop the answer"],
        ["↑", "In the empty field: edit the last message"], ["/", "To the field for messages"], ["?", "This list"]];
    const all = [...others, ...Object.values(alt).map(([key, what]) => [ALT + key, what])];
    byId("shortcuts").append(...all.flatMap(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)]));
    byId("open-help").addEventListener("click", () => help.showModal());
    document.addEventListener("keydown", (event) => {
        // A dialog has its own keys.
        if (document.querySelector("dialog[open]") || event.isComposing || event.defaultPrevented) {
            return;
        }
        const writes = event.target.closest?.("input, textarea, select");
        if (event.key === "Escape") {
            if (!actions.stop() && !writes) {
                actions.focus();
            }
        } else if (event.altKey && !event.ctrlKey && !event.metaKey && Object.hasOwn(alt, event.code)) {
            event.preventDefault();
            alt[event.code][2]();
        } else if (!writes && !event.ctrlKey && !event.metaKey && !event.altKey && (event.key === "/" || event.key === "?")) {
            event.preventDefault();
            if (event.key === "?") {
                help.showModal();
            } else {
                actions.focus();
            }
        }
    });
}

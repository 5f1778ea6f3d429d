// The list of conversations.

import { byId, el, iconButton } from "./dom.js";
import { busySign } from "./message.js";

const narrow = matchMedia("(max-width: 799px)");

export class Sidebar {
    /// `actions`: `open(id)`, `rename(id)`, `save(id)`, `delete(id)`.
    constructor(actions) {
        this.actions = actions;
        this.element = byId("sidebar");
        this.list = byId("conversations");
        this.search = byId("search");
        this.opener = byId("open-sidebar");
        this.opener.addEventListener("click", () => this.toggle());
        byId("close-sidebar").addEventListener("click", () => this.close());
        byId("scrim").addEventListener("click", () => this.close());
        this.element.addEventListener("keydown", (event) => {
            if (event.key === "Escape" && narrow.matches) {
                event.stopPropagation();
                this.close();
            }
        });
        this.search.addEventListener("input", () => this.show(this.shown));
        narrow.addEventListener("change", () => this.setOpen(!narrow.matches));
        this.setOpen(!narrow.matches);
    }

    /// Shows `{conversations, current, busy}`: all, the id of the one that is open, and the ids that are being answered.
    show(shown) {
        this.shown = shown;
        const wanted = this.search.value.trim().toLowerCase();
        const found = shown.conversations.filter((conversation) => !wanted || mentions(conversation, wanted));
        const focused = document.activeElement?.closest?.("#conversations [data-id]")?.dataset.id;
        this.list.replaceChildren(...found.map((conversation) => this.entry(conversation)));
        if (!found.length) {
            this.list.append(el("li", { class: "note" }, wanted ? "Nothing found." : "No conversations yet."));
        }
        if (focused) {
            this.list.querySelector(`[data-id="${CSS.escape(focused)}"] .open`)?.focus();
        }
    }

    entry({ id, title }) {
        const isCurrent = id === this.shown.current;
        const name = title || "New conversation";
        const open = el("button", { type: "button", class: "open", title: name, onclick: () => {
            this.actions.open(id);
            this.closeIfNarrow();
        } }, name);
        if (isCurrent) {
            open.setAttribute("aria-current", "true");
        }
        const buttons = el("span", { class: "buttons" },
            iconButton("edit", `Rename ${name}`, () => this.actions.rename(id)),
            iconButton("save", `Export ${name}`, () => this.actions.save(id)),
            iconButton("delete", `Delete ${name}`, () => this.actions.delete(id)));
        return el("li", { "data-id": id, class: isCurrent ? "current" : "" }, open,
            this.shown.busy.has(id) ? busySign() : null, buttons);
    }

    get isOpen() {
        return !this.element.hidden;
    }

    toggle() {
        this.setOpen(!this.isOpen);
        if (this.isOpen && narrow.matches) {
            byId("new").focus();
        }
    }

    close() {
        this.setOpen(false);
        this.opener.focus();
    }

    closeIfNarrow() {
        if (narrow.matches) {
            this.setOpen(false);
        }
    }

    setOpen(open) {
        const covers = open && narrow.matches;
        this.element.hidden = !open;
        byId("scrim").hidden = !covers;
        byId("main").inert = covers;
        this.opener.setAttribute("aria-expanded", String(open));
    }
}

function mentions({ title, nodes }, wanted) {
    return title.toLowerCase().includes(wanted)
        || Object.values(nodes).some(({ content }) => content.toLowerCase().includes(wanted));
}

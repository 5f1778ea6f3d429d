// The messages of a conversation, and where they are scrolled to.

import { byId, el } from "./dom.js";
import { path, versions } from "./conversation.js";
import { MessageView } from "./message.js";

/// Nearer to the end than this many pixels, the text is followed as it grows.
const NEAR = 48;

export class Transcript {
    constructor(actions) {
        this.actions = { ...actions, speak: (text) => this.speak(text) };
        this.list = byId("messages");
        this.scroller = byId("scroll");
        this.live = byId("live");
        this.latest = byId("latest");
        this.views = [];
        this.conversation = null;
        this.follows = true;
        this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
        this.latest.addEventListener("click", () => this.toEnd());
        new ResizeObserver(() => this.follow()).observe(this.list);
        new ResizeObserver(() => this.follow()).observe(this.scroller);
    }

    /// Shows a conversation; `running` is the message that is under way in it, if one is. What is shown already stays.
    show(conversation, running) {
        const nodes = path(conversation);
        if (this.conversation !== conversation) {
            this.clear();
            this.conversation = conversation;
        }
        const same = this.views.findIndex((view, i) => view.node !== nodes[i]);
        const kept = same < 0 ? this.views.length : same;
        this.views.splice(kept).forEach((view) => view.element.remove());
        const added = nodes.slice(kept).map((node) =>
            new MessageView(node, { actions: this.actions, live: node === running }));
        this.list.append(...added.map((view) => view.element));
        this.views.push(...added);
        for (const view of this.views) {
            view.setVersions(versions(conversation, view.node));
            view.dropResults();
        }
        if (!running) {
            this.views.at(-1)?.askResults();
        }
        byId("empty").hidden = nodes.length > 0;
        this.follow();
    }

    clear() {
        this.list.replaceChildren();
        this.live.replaceChildren();
        this.views = [];
        this.conversation = null;
        this.follows = true;
    }

    /// The view of a message, if it is shown.
    view(node) {
        return this.views.find((view) => view.node === node);
    }

    /// Shows what was added to a message, at most once a frame.
    update(node) {
        this.updating ??= requestAnimationFrame(() => {
            this.updating = null;
            this.view(node)?.update();
            this.follow();
        });
    }

    end(node) {
        const view = this.view(node);
        if (view) {
            view.update();
            view.end();
            view.setVersions(versions(this.conversation, node));
            view.askResults();
            this.follow();
        }
    }

    /// Has a screen reader say a part of an answer.
    speak(text) {
        if (text.trim()) {
            this.live.append(el("p", {}, text));
        }
    }

    scrolled() {
        const { scrollHeight, scrollTop, clientHeight } = this.scroller;
        this.follows = scrollHeight - scrollTop - clientHeight < NEAR;
        this.latest.hidden = this.follows;
    }

    /// Stays at the end, if it was there.
    follow() {
        if (this.follows) {
            this.scroller.scrollTop = this.scroller.scrollHeight;
        }
        this.scrolled();
    }

    toEnd() {
        this.follows = true;
        this.follow();
    }

    /// Edits the last message of the user.
    editLast() {
        const view = this.views.findLast(({ node }) => node.role === "user");
        view?.edit();
        view?.element.scrollIntoView({ block: "nearest" });
        return Boolean(view);
    }
}

// The page: what its parts have to do with each other.

import { models } from "./api.js";
import { Composer } from "./composer.js";
import { add, create, exported, imported, path, removeUnsaid, requestBody, show } from "./conversation.js";
import { askKey, askText, notice, prepareDialogs, toast } from "./dialogs.js";
import { byId, download, el } from "./dom.js";
import { Generation } from "./generation.js";
import { apiKey, isRemembered, setApiKey } from "./key.js";
import { Settings, prepareTheme } from "./settings.js";
import { prepareShortcuts } from "./shortcuts.js";
import { Sidebar } from "./sidebar.js";
import { Store } from "./store.js";
import { Transcript } from "./transcript.js";

/// While an answer comes, it is saved as often as this, in milliseconds.
const SAVE_EVERY = 2000;

class App {
    constructor() {
        this.store = new Store({ onFull: () => this.full(), onOutside: (id) => this.outside(id) });
        /// Answers under way, by conversation.
        this.running = new Map();
        /// What the server has: `{id, context_length}`.
        this.models = [];
        prepareTheme(this.store);
        prepareDialogs();
        this.transcript = new Transcript({
            edit: (node, text) => this.edit(node, text),
            again: (node) => this.again(node),
            version: (id) => this.version(id),
            results: (node, texts) => this.results(node, texts),
        });
        this.composer = new Composer({
            send: (text) => this.send(text),
            stop: () => this.stop(),
            draft: (text) => this.store.setDraft(this.draftName(), text),
            editLast: () => !this.generation && this.transcript.editLast(),
        });
        this.settings = new Settings({ changed: () => this.settingsChanged(), changeKey: () => this.changeKey() });
        this.sidebar = new Sidebar({
            open: (id) => this.open(id),
            rename: (id) => this.rename(id),
            save: (id) => this.export([this.store.get(id)]),
            delete: (id) => this.delete(id),
        });
        this.prepareButtons();
        const wanted = location.hash.slice(1);
        const first = this.store.get(wanted) ?? this.store.list()[0];
        this.open(first?.id ?? null);
        this.composer.focus();
        this.loadModels();
    }

    prepareButtons() {
        byId("new").addEventListener("click", () => this.new());
        byId("export-all").addEventListener("click", () => this.export(this.store.list()));
        byId("import").addEventListener("click", () => byId("import-file").click());
        byId("import-file").addEventListener("change", ({ target }) => this.import(target));
        byId("model").addEventListener("change", ({ target }) => {
            this.store.setSetting("model", target.value);
            this.showUsage();
        });
        window.addEventListener("hashchange", () => {
            const id = location.hash.slice(1);
            if (this.store.get(id) && id !== this.conversation.id) {
                this.open(id);
            }
        });
        // Whatever is being written is kept when the page goes.
        window.addEventListener("pagehide", () => this.running.forEach((_, id) => this.store.save(this.store.get(id))));
        prepareShortcuts({
            new: () => this.new(),
            stop: () => this.stop(),
            again: () => this.again(path(this.conversation).at(-1)),
            edit: () => this.transcript.editLast(),
            settings: () => this.settings.open(),
            sidebar: () => this.sidebar.toggle(),
            next: (step) => this.next(step),
            focus: () => this.composer.focus(),
        });
    }

    /// The answer under way in the conversation that is open.
    get generation() {
        return this.running.get(this.conversation.id);
    }

    get isStored() {
        return this.store.get(this.conversation.id) === this.conversation;
    }

    /// Drafts of conversations that are not there yet share a name.
    draftName() {
        return this.isStored ? this.conversation.id : "new";
    }

    // Conversations.

    /// Opens a conversation; null opens a new one, which is stored with its first message.
    open(id) {
        this.conversation = this.store.get(id) ?? create(this.conversation ?? this.store.list()[0]);
        history.replaceState(null, "", this.isStored ? `#${id}` : location.pathname + location.search);
        this.transcript.clear();
        this.settings.show(this.conversation);
        this.composer.set(this.store.draft(this.draftName()));
        this.show();
    }

    new() {
        this.open(null);
        this.sidebar.closeIfNarrow();
        this.composer.focus();
    }

    next(step) {
        const list = this.store.list();
        const at = list.findIndex(({ id }) => id === this.conversation.id);
        const to = list[at < 0 ? 0 : at + step];
        if (to) {
            this.open(to.id);
        }
    }

    async rename(id) {
        const conversation = this.store.get(id);
        const title = await askText("Name of the conversation", conversation.title);
        if (title) {
            conversation.title = title.slice(0, 200);
            this.store.save(conversation);
            this.show();
        }
    }

    delete(id) {
        const conversation = this.store.get(id);
        const draft = this.store.draft(id);
        this.running.get(id)?.stop();
        this.store.delete(id);
        if (id === this.conversation.id) {
            this.open(this.store.list()[0]?.id ?? null);
        } else {
            this.show();
        }
        toast(`Deleted “${conversation.title}”.`, { label: "Undo", run: () => {
            this.store.save(conversation);
            this.store.setDraft(id, draft);
            this.open(id);
        } });
    }

    export(conversations) {
        const [only] = conversations;
        const name = conversations.length === 1 ? only.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) : "conversations";
        download(`${name || "conversation"}.json`, exported(conversations));
    }

    async import(input) {
        const [file] = input.files;
        try {
            const conversations = imported(await file.text());
            const saved = conversations.filter((conversation) => this.store.save(conversation));
            toast(`Imported ${saved.length} conversation${saved.length === 1 ? "" : "s"}.`);
            if (saved.length) {
                this.open(saved[0].id);
            }
        } catch (error) {
            toast(error.message);
        }
        // The same file can be chosen again.
        input.value = "";
    }

    /// Another tab has changed a conversation.
    outside(id) {
        if (this.running.has(id)) {
            // This tab has the newer text, and saves it soon.
            this.store.conversations.set(id, this.running.get(id).conversation);
        } else if (id === this.conversation.id && this.store.get(id)) {
            this.conversation = this.store.get(id);
            this.settings.show(this.conversation);
        }
        this.show();
    }

    full() {
        notice("The browser's storage is full: what is new is lost when the page is closed. Export and delete conversations.",
            { label: "Export all", run: () => this.export(this.store.list()) });
    }

    // Messages.

    /// Says something. False if it cannot be said now.
    send(text) {
        if (this.generation) {
            toast("Wait for the answer, or stop it with Escape.");
            return false;
        }
        this.store.setDraft(this.draftName(), "");
        add(this.conversation, this.conversation.leaf, { role: "user", content: text });
        this.answer();
        return true;
    }

    edit(node, text) {
        const { id, parent, created, finish, stats, error, ...same } = node;
        if (node.role === "user") {
            this.stop();
            add(this.conversation, parent, { ...same, content: text });
            this.answer();
        } else {
            add(this.conversation, parent, { ...same, content: text, finish: "stop" });
            this.save();
        }
    }

    /// Answers again: another version of an answer, or one to a message that has none yet.
    again(node) {
        if (!node || this.generation) {
            return;
        }
        this.conversation.leaf = node.role === "assistant" ? node.parent : node.id;
        removeUnsaid(this.conversation, node);
        this.answer();
    }

    version(id) {
        if (!this.generation) {
            show(this.conversation, id);
            this.save();
        }
    }

    /// What tools have given back.
    results(node, texts) {
        node.calls.forEach((call, i) => {
            add(this.conversation, this.conversation.leaf, { role: "tool", callId: call.id, content: texts[i] });
        });
        this.answer();
    }

    stop() {
        const { generation } = this;
        generation?.stop();
        return Boolean(generation);
    }

    /// Asks for what comes after the last message that is shown.
    answer() {
        const { conversation } = this;
        let body;
        try {
            body = requestBody(conversation, conversation.leaf, byId("model").value);
        } catch (error) {
            this.save();
            notice(`More fields of the request: ${error.message}`,
                { label: "Settings", run: () => this.settings.open() });
            return;
        }
        notice(null);
        byId("live").replaceChildren();
        const node = add(conversation, conversation.leaf, { role: "assistant" });
        let saved = Date.now();
        const generation = new Generation(node, {
            onChange: () => {
                this.transcript.update(node);
                if (Date.now() - saved > SAVE_EVERY) {
                    saved = Date.now();
                    this.store.save(conversation);
                }
            },
            onEnd: (error) => this.ended(conversation, node, error),
        });
        generation.conversation = conversation;
        this.running.set(conversation.id, generation);
        this.transcript.follows = true;
        this.save();
        generation.run(body, apiKey());
    }

    ended(conversation, node, error) {
        this.running.delete(conversation.id);
        conversation.updated = Date.now();
        // It may have been deleted meanwhile.
        if (this.store.get(conversation.id)) {
            this.store.save(conversation);
        }
        if (conversation === this.conversation) {
            this.transcript.end(node);
        }
        this.show();
        if (error?.status === 401) {
            this.needKey(error.message, () => this.again(node));
        } else if (error?.status === 404) {
            this.loadModels();
        }
    }

    save() {
        this.store.save(this.conversation);
        history.replaceState(null, "", `#${this.conversation.id}`);
        this.show();
    }

    settingsChanged() {
        if (this.isStored) {
            this.store.save(this.conversation);
        }
    }

    // The server.

    async loadModels() {
        try {
            this.models = await models(apiKey());
        } catch (error) {
            if (error.status === 401) {
                this.needKey(error.message, () => this.loadModels());
            } else {
                notice(error.message, { label: "Try again", run: () => this.loadModels() });
            }
            return;
        }
        notice(null);
        const select = byId("model");
        const wanted = select.value || this.store.setting("model");
        select.replaceChildren(...this.models.map(({ id }) => el("option", { value: id }, id)));
        if (this.models.some(({ id }) => id === wanted)) {
            select.value = wanted;
        }
        this.showUsage();
    }

    async needKey(why, then) {
        if (byId("key").open) {
            return;
        }
        const before = apiKey();
        const given = await askKey(before ? `The server refuses the key: ${why}.` : "This server needs an API key.",
            { key: before, remember: isRemembered() });
        if (given?.key) {
            setApiKey(given.key, given.remember);
            if (!this.models.length) {
                await this.loadModels();
            }
            then();
        } else {
            notice("This server needs an API key.", { label: "API key …", run: () => this.needKey(why, then) });
        }
    }

    async changeKey() {
        const given = await askKey("An empty one is forgotten.", { key: apiKey(), remember: isRemembered() });
        if (given) {
            setApiKey(given.key, given.remember);
            this.loadModels();
        }
    }

    // What is seen.

    show() {
        const { conversation, generation } = this;
        this.transcript.show(conversation, generation?.node);
        this.sidebar.show({
            conversations: this.store.list(), current: conversation.id, busy: new Set(this.running.keys()),
        });
        this.composer.setBusy(Boolean(generation));
        const title = conversation.title || "New conversation";
        byId("title").textContent = title;
        document.title = conversation.title ? `${title} – minfer` : "minfer";
        this.showUsage();
    }

    /// How full the context is, as the last answer told.
    showUsage() {
        const last = path(this.conversation).findLast(({ stats }) => stats?.exact);
        const model = this.models.find(({ id }) => id === byId("model").value);
        const used = last ? last.stats.prompt + last.stats.completion : 0;
        const text = (count) => count.toLocaleString("en");
        byId("usage").textContent = used && model?.context_length
            ? `${text(used)} of ${text(model.context_length)} tokens of the context` : "";
        byId("usage").classList.toggle("full", used > 0.9 * (model?.context_length ?? Infinity));
    }
}

new App();

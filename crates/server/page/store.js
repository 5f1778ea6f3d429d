// Conversations in the browser's storage, one entry each. Without storage they live as long as the page.

import { check } from "./conversation.js";

const PREFIX = "minfer.chat.";
const DRAFT = "minfer.draft.";

export class Store {
    /// `onFull` hears when there is no more room; `onOutside` when another tab has changed a conversation.
    constructor({ onFull = () => {}, onOutside = () => {} } = {}) {
        this.onFull = onFull;
        this.conversations = new Map();
        try {
            this.storage = window.localStorage;
            this.readAll();
        } catch {
            this.storage = null;
        }
        window.addEventListener("storage", ({ key, newValue }) => {
            if (key?.startsWith(PREFIX)) {
                const id = key.slice(PREFIX.length);
                this.take(id, newValue);
                onOutside(id);
            }
        });
    }

    readAll() {
        for (let i = 0; i < this.storage.length; i += 1) {
            const key = this.storage.key(i);
            if (key.startsWith(PREFIX)) {
                this.take(key.slice(PREFIX.length), this.storage.getItem(key));
            }
        }
    }

    take(id, text) {
        let conversation = null;
        try {
            conversation = check(JSON.parse(text));
        } catch {
            // What cannot be read stays where it is, and is not shown.
        }
        if (conversation) {
            this.conversations.set(id, conversation);
        } else {
            this.conversations.delete(id);
        }
    }

    /// All, the newest first.
    list() {
        return [...this.conversations.values()].sort((a, b) => b.updated - a.updated);
    }

    get(id) {
        return this.conversations.get(id);
    }

    save(conversation) {
        this.conversations.set(conversation.id, conversation);
        return this.write(PREFIX + conversation.id, JSON.stringify(conversation));
    }

    delete(id) {
        this.conversations.delete(id);
        this.storage?.removeItem(PREFIX + id);
        this.storage?.removeItem(DRAFT + id);
    }

    /// What was written for a conversation and not sent.
    draft(id) {
        return this.storage?.getItem(DRAFT + id) ?? "";
    }

    setDraft(id, text) {
        if (text) {
            this.write(DRAFT + id, text);
        } else {
            this.storage?.removeItem(DRAFT + id);
        }
    }

    /// A setting of the page.
    setting(name) {
        return this.storage?.getItem(`minfer.${name}`) ?? null;
    }

    setSetting(name, value) {
        this.write(`minfer.${name}`, value);
    }

    write(key, value) {
        try {
            this.storage?.setItem(key, value);
            return true;
        } catch (error) {
            this.onFull(error);
            return false;
        }
    }
}

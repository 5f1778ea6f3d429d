// As much of a document as the renderer uses, which writes itself down. There is no innerHTML to misuse.

class Node {
    parent = null;

    get parentList() {
        return this.parent.childNodes;
    }

    replaceWith(node) {
        const { parent } = this;
        parent.childNodes[parent.childNodes.indexOf(this)] = node;
        node.parent = parent;
        this.parent = null;
    }

    remove() {
        this.parentList.splice(this.parentList.lastIndexOf(this), 1);
        this.parent = null;
    }
}

class Text extends Node {
    constructor(data) {
        super();
        this.data = data;
    }

    get textContent() {
        return this.data;
    }

    write() {
        return this.data.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
    }
}

class Element extends Node {
    constructor(document, name) {
        super();
        this.ownerDocument = document;
        this.name = name;
        this.childNodes = [];
    }

    get lastChild() {
        return this.childNodes.at(-1);
    }

    append(...nodes) {
        for (const node of nodes) {
            node.parent = this;
            this.childNodes.push(node);
        }
    }

    insertBefore(node, next) {
        node.parent = this;
        this.childNodes.splice(this.childNodes.indexOf(next), 0, node);
    }

    replaceChildren(...nodes) {
        this.childNodes = [];
        this.append(...nodes);
    }

    get textContent() {
        return this.childNodes.map((node) => node.textContent).join("");
    }

    set textContent(text) {
        this.replaceChildren(new Text(text));
    }

    write() {
        const names = ["className", "href", "start", "scope", "rel", "target", "title", "tabIndex"];
        const attributes = names.filter((name) => this[name] !== undefined)
            .map((name) => ` ${name}=${JSON.stringify(String(this[name]))}`);
        return `<${this.name}${attributes.join("")}>${this.childNodes.map((node) => node.write()).join("")}</${this.name}>`;
    }
}

export const document = {
    created: 0,
    createElement(name) {
        this.created += 1;
        return new Element(this, name);
    },
    createTextNode(data) {
        this.created += 1;
        return new Text(data);
    },
};

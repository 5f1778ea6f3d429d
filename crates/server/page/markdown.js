// Shows Markdown that grows. Elements are built one by one and text is only ever text, so that nothing in an answer can
// become a script, a style or a request. Only what is not final is built again; see blocks.js.

import { Blocks } from "./blocks.js";
import { highlight } from "./highlight.js";
import { parseInline } from "./inline.js";

/// Beyond this many characters of one line, or lines of one paragraph, it is shown again only when it has grown by a
/// sixteenth: what is shown again and again then adds up to a multiple of the text.
const LONG_LINE = 16384;
const LONG_PARAGRAPH = 256;
const GROWTH = 17 / 16;

const MARKS = { strong: "strong", em: "em", del: "del" };

export class MarkdownView {
    /// Shows in `target`, a fresh element. `onBlock` hears of each block of the text when it is final; `onCopy` makes the
    /// button that copies a code.
    constructor(target, { onBlock = () => {}, copyButton = null } = {}) {
        this.document = target.ownerDocument;
        this.blocks = new Blocks();
        this.blocks.root.dom = target;
        this.onBlock = onBlock;
        this.copyButton = copyButton;
        /// The last line, which is not complete, and its length when it was shown.
        this.partial = "";
        this.shownPartial = 0;
        this.trial = null;
    }

    append(text) {
        if (!text) {
            return;
        }
        const newline = text.includes("\n");
        this.partial += text;
        const { length } = this.partial;
        if (!newline && length > LONG_LINE && length < this.shownPartial * GROWTH) {
            return;
        }
        this.takeBack();
        if (newline) {
            const lines = this.partial.split("\n");
            this.partial = lines.pop();
            for (const line of lines) {
                this.blocks.line(line.endsWith("\r") ? line.slice(0, -1) : line);
            }
            mark(this.blocks.root);
        }
        this.shownPartial = this.partial.length;
        if (this.partial) {
            this.trial = this.blocks.save();
            this.blocks.line(this.partial);
        }
        this.children(this.blocks.root);
    }

    /// The text is complete.
    finish() {
        this.takeBack();
        if (this.partial) {
            this.blocks.line(this.partial);
            this.partial = "";
        }
        this.blocks.finish();
        mark(this.blocks.root);
        this.children(this.blocks.root);
    }

    takeBack() {
        if (this.trial) {
            this.blocks.restore(this.trial);
            this.trial = null;
        }
    }

    /// Shows the children of a block from the first on that is not final.
    children(block) {
        const { dom, children } = block;
        for (let i = block.synced ?? 0; i < children.length; i += 1) {
            const child = children[i];
            const node = this.block(child);
            const there = dom.childNodes[i];
            if (there === undefined) {
                dom.append(node);
            } else if (there !== node) {
                there.replaceWith(node);
            }
            if (child.final) {
                block.synced = i + 1;
                if (block === this.blocks.root) {
                    this.onBlock(spoken(child));
                }
            }
        }
        while (dom.childNodes.length > children.length) {
            dom.lastChild.remove();
        }
    }

    block(block) {
        block.dom ??= this.create(block);
        switch (block.type) {
            case "paragraph":
            case "heading":
                this.text(block);
                break;
            case "fence":
            case "math":
                this.code(block);
                break;
            case "table":
                this.rows(block);
                break;
            case "rule":
                break;
            default:
                this.children(block);
        }
        return block.dom;
    }

    create(block) {
        switch (block.type) {
            case "paragraph":
                return this.element("p");
            case "heading":
                // The page has its own first and second level.
                return this.element(`h${Math.min(6, block.level + 2)}`, `h${block.level}`);
            case "quote":
                return this.element("blockquote");
            case "list": {
                const list = this.element(block.ordered ? "ol" : "ul");
                if (block.ordered && block.start !== 1) {
                    list.start = block.start;
                }
                return list;
            }
            case "item":
                return this.element("li", block.checked === null ? "" : block.checked ? "task done" : "task");
            case "fence":
            case "math":
                return this.createCode(block);
            case "table":
                return this.createTable(block);
            default:
                return this.element("hr");
        }
    }

    element(name, classes = "") {
        const element = this.document.createElement(name);
        if (classes) {
            element.className = classes;
        }
        return element;
    }

    text(block) {
        const { lines } = block;
        const waits = lines.length > LONG_PARAGRAPH && lines.length < (block.shownLines ?? 0) * GROWTH;
        if (block.shownFinal || (waits && !block.final)) {
            return;
        }
        block.shownFinal = block.final;
        block.shownLines = lines.length;
        block.dom.replaceChildren(...this.inline(parseInline(lines.join("\n"))));
    }

    inline(nodes) {
        return nodes.map((node) => {
            switch (node.type) {
                case "text":
                    return this.document.createTextNode(node.text);
                case "break":
                    return this.element("br");
                case "code":
                case "math": {
                    const code = this.element("code", node.type === "math" ? "math" : "");
                    code.textContent = node.text;
                    return code;
                }
                case "link": {
                    const link = this.element("a");
                    link.href = node.href;
                    link.title = node.href;
                    link.target = "_blank";
                    link.rel = "noopener noreferrer nofollow";
                    link.append(...this.inline(node.children));
                    return link;
                }
                default: {
                    const marked = this.element(MARKS[node.type]);
                    marked.append(...this.inline(node.children));
                    return marked;
                }
            }
        });
    }

    createCode(block) {
        const frame = this.element("div", `codeblock ${block.type}`);
        const pre = this.element("pre");
        // It may be wider than the screen, and has to be reached by keyboard then.
        pre.tabIndex = 0;
        block.code = this.element("code");
        block.tail = this.document.createTextNode("");
        block.code.append(block.tail);
        pre.append(block.code);
        if (block.type === "fence") {
            const head = this.element("div", "codehead");
            const language = this.element("span");
            language.textContent = languageOf(block) || "text";
            head.append(language);
            if (this.copyButton) {
                head.append(this.copyButton(() => block.lines.join("\n")));
            }
            frame.append(head);
        }
        frame.append(pre);
        return frame;
    }

    /// Lines that are final get text nodes that stay; the others share one at the end.
    code(block) {
        const shown = block.shownLines ?? 0;
        const final = block.final ? block.lines.length : block.finalLines ?? 0;
        if (final > shown) {
            const text = `${block.lines.slice(shown, final).join("\n")}\n`;
            block.code.insertBefore(this.document.createTextNode(text), block.tail);
            block.shownLines = final;
        }
        block.tail.data = block.lines.slice(final).join("\n");
        if (block.final && block.type === "fence" && !block.highlighted) {
            block.highlighted = true;
            const parts = highlight(block.lines.join("\n"), languageOf(block));
            if (parts) {
                block.code.replaceChildren(...parts.map(({ type, text }) => {
                    if (!type) {
                        return this.document.createTextNode(text);
                    }
                    const span = this.element("span", `hl-${type}`);
                    span.textContent = text;
                    return span;
                }));
            }
        }
    }

    createTable(block) {
        const frame = this.element("div", "table");
        frame.tabIndex = 0;
        const table = this.element("table");
        const head = this.element("thead");
        head.append(this.row(block, block.rows[0], "th"));
        block.body = this.element("tbody");
        table.append(head, block.body);
        frame.append(table);
        return frame;
    }

    rows(block) {
        const final = block.final ? block.rows.length : block.finalRows ?? 1;
        const shown = block.shownRows ?? 1;
        while (block.body.childNodes.length > shown - 1) {
            block.body.lastChild.remove();
        }
        for (const row of block.rows.slice(shown)) {
            block.body.append(this.row(block, row, "td"));
        }
        block.shownRows = Math.max(shown, final);
    }

    row(block, texts, name) {
        const row = this.element("tr");
        // What has no column is left out.
        texts.slice(0, block.align.length).forEach((text, column) => {
            const cell = this.element(name, block.align[column] ? `align-${block.align[column]}` : "");
            if (name === "th") {
                cell.scope = "col";
            }
            cell.append(...this.inline(parseInline(text)));
            row.append(cell);
        });
        return row;
    }
}

/// Marks what will not change any more. Each block is looked at once after it is final.
function mark(block) {
    block.finalLines = block.lines?.length;
    block.finalRows = block.rows?.length;
    if (block.done) {
        block.final = true;
    }
    if (block.children) {
        for (let i = block.marked ?? 0; i < block.children.length; i += 1) {
            mark(block.children[i]);
            if (block.children[i].done) {
                block.marked = i + 1;
            }
        }
    }
}

function languageOf(block) {
    return block.info.split(/[\s{,]/, 1)[0].toLowerCase().slice(0, 24);
}

/// What is said of a block: its text; of code only how long it is.
function spoken(block) {
    if (block.type === "fence") {
        return `Code, ${block.lines.length} lines.`;
    }
    return block.dom.textContent;
}

// The blocks of a Markdown text that grows: headings, paragraphs, lists, quotes, tables, code, formulas, rules. Pure.
//
// Each line is read once. Only blocks that are open, on one path from the root, change; everything else is final, so that
// who shows them need not look at it again. A last line that is not complete is read on trial, and taken back when more
// of it has come: `begin` and `end` of a trial cost as much as the path is deep.
//
// Deliberately not there, as chats use it otherwise: code by indentation, headings by a line of dashes (that is a rule),
// HTML (that is text), references.

const MAX_DEPTH = 12;
const MAX_COLUMNS = 64;

const FENCE = /^( *)(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:_[ \t]*){3,}|(?:\*[ \t]*){3,})$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const MATH = /^ {0,3}(\$\$|\\\[)/;

export class Blocks {
    constructor() {
        this.root = { type: "document", children: [] };
        /// The open blocks, from the root to the leaf.
        this.open = [this.root];
    }

    get leaf() {
        return this.open.at(-1);
    }

    /// What `restore` needs. Everything that reading a line may change is on the open path.
    save() {
        const fields = ({ children, lines, rows, done }) =>
            ({ lines, done, counts: [children?.length, lines?.length, rows?.length] });
        return this.open.map((block) => ({ block, ...fields(block) }));
    }

    restore(saved) {
        this.open = saved.map(({ block }) => block);
        for (const { block, lines, done, counts } of saved) {
            block.done = done;
            block.lines = lines;
            [block.children, block.lines, block.rows].forEach((list, i) => {
                if (list) {
                    list.length = counts[i];
                }
            });
        }
    }

    /// Reads a line, without its end.
    line(text) {
        let rest = text.replace(/^[ \t]+/, (space) => space.replaceAll("\t", "    "));
        let depth = 1;
        for (; depth < this.open.length; depth += 1) {
            const next = this.continued(this.open[depth], rest);
            if (next === null) {
                break;
            }
            rest = next;
        }
        if (depth === this.open.length && this.verbatim(rest)) {
            return;
        }
        // A line of a paragraph that goes on, whatever it is in.
        const lazy = this.leaf.type === "paragraph" ? this.leaf : null;
        if (lazy && depth < this.open.length - 1 && !startsBlock(rest, lazy)) {
            lazy.lines.push(rest.trim());
            return;
        }
        if (depth < this.open.length && this.open[depth] !== lazy) {
            this.close(depth);
        }
        this.start(rest);
    }

    /// What is left of a line for what is in an open block; null if the block does not go on.
    continued(block, rest) {
        switch (block.type) {
            case "quote":
                return QUOTE.test(rest) ? rest.replace(QUOTE, "") : null;
            case "list":
                return rest;
            case "item": {
                const indent = spaces(rest);
                // Code in an item goes on to its end, even if it is not indented as the item is.
                if (this.leaf.type === "fence" || this.leaf.type === "math") {
                    return rest.slice(Math.min(indent, block.indent));
                }
                const blank = indent === rest.length;
                // Two columns more than its marker are enough for a list in an item, as models write it.
                const nested = indent >= block.column + 2 && ITEM.test(rest);
                if (!blank && !nested && indent < block.indent) {
                    return null;
                }
                return rest.slice(Math.min(indent, block.indent));
            }
            case "fence":
            case "math":
            case "table":
                return rest;
            default:
                return null;
        }
    }

    /// Takes a line of a block whose lines stand as they are.
    verbatim(rest) {
        const { leaf } = this;
        if (leaf.type === "fence") {
            const end = FENCE.exec(rest);
            if (end && end[2].startsWith(leaf.mark) && !end[3].trim()) {
                this.close(this.open.length - 1);
            } else {
                leaf.lines.push(rest.slice(Math.min(spaces(rest), leaf.column)));
            }
            return true;
        }
        if (leaf.type === "math") {
            leaf.lines.push(rest);
            if (rest.trimEnd().endsWith(leaf.end)) {
                this.close(this.open.length - 1);
            }
            return true;
        }
        return false;
    }

    /// Begins the blocks that a line begins; what is left of it is text.
    start(line) {
        let rest = line;
        for (;;) {
            const fits = this.open.length < MAX_DEPTH;
            const item = RULE.test(rest) ? null : ITEM.exec(rest);
            if (fits && QUOTE.test(rest)) {
                this.endLeaf();
                this.endList();
                this.add({ type: "quote", children: [] });
                rest = rest.replace(QUOTE, "");
            } else if (fits && item && !this.isText(item, rest)) {
                this.endLeaf();
                rest = this.item(item, rest);
            } else {
                break;
            }
        }
        this.leafLine(rest);
    }

    /// Whether what looks like a list goes on with a paragraph: it begins with another number than one, or is empty.
    isText(item, rest) {
        const within = this.leaf.type === "paragraph";
        return within && (item[0].length === rest.length || (/^\d/.test(item[2]) && parseInt(item[2], 10) !== 1));
    }

    item([all, before, marker, after], rest) {
        const ordered = /^\d/.test(marker);
        const kind = marker.at(-1);
        if (this.leaf.type !== "list" || this.leaf.kind !== kind) {
            this.endList();
            const start = ordered ? parseInt(marker, 10) : undefined;
            this.add({ type: "list", ordered, kind, start, children: [] });
        }
        // More than four spaces after the marker are the text's own.
        const gap = after.length > 4 || after.length === 0 ? 1 : after.length;
        const content = rest.slice(Math.min(all.length, before.length + marker.length + gap));
        const task = /^\[([ xX])\] +/.exec(content);
        const indent = before.length + marker.length + gap;
        this.add({ type: "item", column: before.length, indent, children: [], checked: task ? task[1] !== " " : null });
        return task ? content.slice(task[0].length) : content;
    }

    leafLine(rest) {
        const text = rest.trim();
        const { leaf } = this;
        if (!text) {
            this.endLeaf();
            return;
        }
        if (leaf.type === "table") {
            if (text.includes("|")) {
                leaf.rows.push(cells(text));
                return;
            }
            this.endLeaf();
        }
        if (leaf.type === "paragraph" && this.table(leaf, text)) {
            return;
        }
        const block = leafBlock(rest, text);
        if (block) {
            this.endLeaf();
            this.endList();
            this.add(block);
            if (block.type === "heading" || block.type === "rule" || block.done) {
                this.close(this.open.length - 1);
            }
        } else if (this.leaf.type === "paragraph") {
            this.leaf.lines.push(text);
        } else {
            this.endList();
            this.add({ type: "paragraph", lines: [text] });
        }
    }

    /// Begins a table, if a line rules off the last one of a paragraph.
    table(paragraph, text) {
        const header = paragraph.lines.at(-1);
        if (!text.includes("-") || !(text.includes("|") || header.includes("|")) || !TABLE_RULE.test(text)) {
            return false;
        }
        const head = cells(header);
        const rule = cells(text);
        if (head.length !== rule.length) {
            return false;
        }
        // A new list, so that the old one can come back after a trial.
        paragraph.lines = paragraph.lines.slice(0, -1);
        this.endLeaf();
        const align = rule.map((cell) =>
            cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : cell.startsWith(":") ? "left" : null);
        this.add({ type: "table", align, rows: [head] });
        return true;
    }

    add(block) {
        this.leaf.children.push(block);
        this.open.push(block);
    }

    /// Closes open blocks from a depth on.
    close(depth) {
        for (const block of this.open.splice(depth)) {
            block.done = true;
        }
    }

    endLeaf() {
        if (!this.leaf.children) {
            this.close(this.open.length - 1);
        }
    }

    /// A list has items in it, nothing else.
    endList() {
        if (this.leaf.type === "list") {
            this.close(this.open.length - 1);
        }
    }

    /// Ends the text.
    finish() {
        this.close(0);
    }
}

function spaces(text) {
    let count = 0;
    while (text[count] === " ") {
        count += 1;
    }
    return count;
}

/// Whether a line begins something, so that it is no more of the paragraph before.
function startsBlock(rest, paragraph) {
    const item = ITEM.exec(rest);
    return !rest.trim() || QUOTE.test(rest) || item !== null || leafBlock(rest, rest.trim()) !== null
        || (TABLE_RULE.test(rest) && paragraph.lines.at(-1).includes("|"));
}

/// The block that a line begins, if it is no container and no paragraph.
function leafBlock(rest, text) {
    const fence = FENCE.exec(rest);
    if (fence) {
        return { type: "fence", column: fence[1].length, mark: fence[2], info: fence[3].trim(), lines: [] };
    }
    const heading = HEADING.exec(rest);
    if (heading) {
        return { type: "heading", level: heading[1].length, lines: [(heading[2] ?? "").trim().replace(/(^|[ \t])#+$/, "").trim()] };
    }
    if (RULE.test(rest)) {
        return { type: "rule" };
    }
    const math = MATH.exec(rest);
    if (math) {
        const end = math[1] === "$$" ? "$$" : "\\]";
        // What follows its end on the same line makes it part of a sentence.
        const at = text.indexOf(end, 2);
        return at >= 0 && at + 2 < text.length ? null : { type: "math", end, lines: [text], done: at >= 0 };
    }
    return null;
}

/// The cells of a row: `|` divides, `\|` does not.
function cells(text) {
    const row = text.trim().replace(/^\|/, "").replace(/\|$/, "");
    return row.split(/(?<!\\)\|/, MAX_COLUMNS).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

// Text of one block: emphasis, code, links, line breaks. Pure: a string becomes a tree of plain objects, of which
// markdown.js makes elements. HTML is text. Everything is linear in the length of the text: whatever looks ahead has a
// bound, and nesting has one too.
//
// Nodes: {type: "text", text}, {type: "code", text}, {type: "math", text}, {type: "break"},
// {type: "strong" | "em" | "del", children}, {type: "link", href, children}.

const MAX_DEPTH = 16;
const MAX_DESTINATION = 2048;
const MAX_BRACKETS = 32;

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", ndash: "–",
    mdash: "—", hellip: "…", rarr: "→", larr: "←", times: "×", deg: "°" };

/// The address of a link, if it is one that may be followed; null if not. Only whole addresses of the web and of mail
/// are: no `javascript:`, no `data:`, none relative to this page.
export function safeUrl(text) {
    let url;
    try {
        url = new URL(text);
    } catch {
        return null;
    }
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

/// The tree of a text.
export function parseInline(text) {
    return new Inline(text).parse();
}

/// The words of a tree, without marks.
export function plainText(nodes) {
    return nodes.map((node) => node.text ?? (node.type === "break" ? "\n" : plainText(node.children))).join("");
}

const isSpace = (c) => c === undefined || /\s/.test(c);
const isPunctuation = (c) => c !== undefined && /[\p{P}\p{S}]/u.test(c);
const isWord = (c) => c !== undefined && /[\p{L}\p{N}]/u.test(c);
// Scripts without spaces between words: their letters are as good as a border.
const isWide = (c) => c !== undefined && /[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Hang}]/u.test(c);
const isBorder = (c) => isSpace(c) || isPunctuation(c) || isWide(c);

class Inline {
    constructor(text) {
        this.text = text;
        this.at = 0;
        /// What was read: nodes, and runs of delimiters that may turn out to be text.
        this.parts = [];
        /// Positions in `parts` of brackets that are open.
        this.brackets = [];
        this.plain = "";
        /// Where backtick runs are, by their length; made when the first one is met.
        this.runs = null;
        /// Ends of formulas that do not come again.
        this.noMath = new Set();
    }

    parse() {
        const { text } = this;
        while (this.at < text.length) {
            const c = text[this.at];
            const read = SPECIAL.has(c) && this[SPECIAL.get(c)](c);
            if (!read) {
                this.plain += c;
                this.at += 1;
            }
        }
        this.flush();
        return finish(pairDelimiters(this.parts));
    }

    flush() {
        if (this.plain) {
            this.parts.push({ type: "text", text: this.plain });
            this.plain = "";
        }
    }

    push(node, length) {
        this.flush();
        this.parts.push(node);
        this.at += length;
        return true;
    }

    lineBreak() {
        let end = this.plain.length;
        while (this.plain[end - 1] === " ") {
            end -= 1;
        }
        this.plain = this.plain.slice(0, end);
        this.push({ type: "break" }, 1);
        while (this.text[this.at] === " ") {
            this.at += 1;
        }
        return true;
    }

    backslash() {
        const next = this.text[this.at + 1];
        if (next === "(" || next === "[") {
            const close = next === "(" ? "\\)" : "\\]";
            const end = this.noMath.has(close) ? -1 : this.text.indexOf(close, this.at + 2);
            if (end > 0) {
                const length = end + 2 - this.at;
                return this.push({ type: "math", text: this.text.slice(this.at, end + 2) }, length);
            }
            this.noMath.add(close);
        }
        if (next === "\n") {
            this.at += 1;
            return this.lineBreak();
        }
        if (next !== undefined && /[!-/:-@[-`{-~]/.test(next)) {
            this.plain += next;
            this.at += 2;
            return true;
        }
        return false;
    }

    backticks() {
        const run = /`+/y;
        run.lastIndex = this.at;
        const length = run.exec(this.text)[0].length;
        const begin = this.at + length;
        const end = this.closer(begin, length);
        if (end === undefined) {
            this.plain += "`".repeat(length);
            this.at = begin;
            return true;
        }
        let code = this.text.slice(begin, end).replaceAll("\n", " ");
        if (/^ .*[^ ].* $/.test(code)) {
            code = code.slice(1, -1);
        }
        return this.push({ type: "code", text: code }, end + length - this.at);
    }

    /// Where the next run of exactly `length` backticks is.
    closer(from, length) {
        if (!this.runs) {
            this.runs = new Map();
            for (const { 0: run, index } of this.text.matchAll(/`+/g)) {
                const same = this.runs.get(run.length) ?? { next: 0, places: [] };
                same.places.push(index);
                this.runs.set(run.length, same);
            }
        }
        // An escaped backtick makes the rest of its run shorter than any that is known.
        const same = this.runs.get(length) ?? { next: 0, places: [] };
        while (same.places[same.next] < from) {
            same.next += 1;
        }
        return same.places[same.next];
    }

    delimiters(c) {
        let end = this.at;
        while (this.text[end] === c) {
            end += 1;
        }
        const count = end - this.at;
        if (c === "~" && count !== 2) {
            this.plain += c.repeat(count);
            this.at = end;
            return true;
        }
        const before = this.text[this.at - 1];
        const after = this.text[end];
        const left = !isSpace(after) && (!isPunctuation(after) || isBorder(before));
        const right = !isSpace(before) && (!isPunctuation(before) || isBorder(after));
        // A word may have underscores in it.
        const inWord = c === "_" && isWord(before) && isWord(after);
        const run = { type: "run", c, count, opens: left && !inWord, closes: right && !inWord };
        return this.push(run, count);
    }

    open() {
        this.flush();
        const image = this.text[this.at] === "!";
        if (image && this.text[this.at + 1] !== "[") {
            return false;
        }
        this.brackets.push({ part: this.parts.length, image });
        if (this.brackets.length > MAX_BRACKETS) {
            this.brackets.shift();
        }
        return this.push({ type: "text", text: image ? "![" : "[" }, image ? 2 : 1);
    }

    close() {
        const bracket = this.brackets.pop();
        const found = bracket && this.destination(this.at + 1);
        const href = found && safeUrl(found.href);
        if (!href) {
            return false;
        }
        this.flush();
        const children = finish(pairDelimiters(this.parts.splice(bracket.part).slice(1)));
        // There is no link in a link: brackets before this one are text, unless it is a picture in a link.
        if (!bracket.image) {
            this.brackets.length = 0;
        }
        const label = hasLink(children) ? [{ type: "text", text: plainText(children) }] : children;
        const shown = label.length ? label : [{ type: "text", text: href }];
        return this.push({ type: "link", href, children: shown }, found.end - this.at);
    }

    /// `(address "title")`; the title is left out.
    destination(at) {
        if (this.text[at] !== "(") {
            return null;
        }
        const part = this.text.slice(at + 1, at + 1 + MAX_DESTINATION);
        const shape = /^\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\([^\s()]*\))+))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/;
        const found = shape.exec(part);
        if (!found) {
            return null;
        }
        const href = (found[1] ?? found[2]).replace(/\\([!-/:-@[-`{-~])/g, "$1").replace(/&amp;/g, "&");
        return { href, end: at + 1 + found[0].length };
    }

    /// `<address>`, or a line break as HTML has it.
    angle() {
        const part = this.text.slice(this.at, this.at + MAX_DESTINATION);
        const line = /^<br\s{0,9}\/?>/i.exec(part);
        if (line) {
            return this.push({ type: "break" }, line[0].length);
        }
        const link = /^<([a-z]+:[^\s<>]+)>/i.exec(part);
        const mail = /^<([\w.+-]+@[\w-]+(?:\.[\w-]+)+)>/.exec(part);
        const href = (link && safeUrl(link[1])) || (mail && safeUrl(`mailto:${mail[1]}`));
        if (!href) {
            return false;
        }
        const [all, shown] = link ?? mail;
        return this.push({ type: "link", href, children: [{ type: "text", text: shown }] }, all.length);
    }

    entity() {
        const found = /^&(?:([a-z]{2,8})|#(\d{1,7})|#x([\da-f]{1,6}));/i.exec(this.text.slice(this.at, this.at + 12));
        const code = found && (found[2] ? parseInt(found[2], 10) : parseInt(found[3], 16));
        const visible = code >= 32 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
        const named = found?.[1] && Object.hasOwn(ENTITIES, found[1]) ? ENTITIES[found[1]] : undefined;
        const shown = named ?? (visible ? String.fromCodePoint(code) : undefined);
        if (shown === undefined) {
            return false;
        }
        this.plain += shown;
        this.at += found[0].length;
        return true;
    }

    /// An address that stands by itself.
    bareUrl() {
        if (isWord(this.text[this.at - 1])) {
            return false;
        }
        const shape = /https?:\/\/[^\s<>"'`*\\|[\]]{1,2048}/y;
        shape.lastIndex = this.at;
        let found = shape.exec(this.text)?.[0];
        // Punctuation at the end belongs to the sentence; so does a bracket that was opened before.
        found = found?.replace(/[.,:;!?_~]+$/, "");
        if (found?.endsWith(")") && !found.includes("(")) {
            found = found.replace(/\)[).,:;!?]*$/, "");
        }
        const href = found && safeUrl(found);
        return href && this.push({ type: "link", href, children: [{ type: "text", text: found }] }, found.length);
    }
}

const SPECIAL = new Map([["\n", "lineBreak"], ["\\", "backslash"], ["`", "backticks"], ["*", "delimiters"],
    ["_", "delimiters"], ["~", "delimiters"], ["[", "open"], ["!", "open"], ["]", "close"], ["<", "angle"],
    ["&", "entity"], ["h", "bareUrl"]]);

const depth = (nodes) => nodes.reduce((most, node) => Math.max(most, node.depth ?? 0), 0);
const hasLink = (nodes) => nodes.some((node) => node.type === "link" || (node.children && hasLink(node.children)));

/// Pairs runs of delimiters, the innermost first. Every run that cannot be closed is remembered by its kind, so that it
/// is not looked for again.
function pairDelimiters(parts) {
    const out = [];
    const openers = [];
    // Below this many openers there is none of a kind.
    const bottom = new Map();
    for (const part of parts) {
        if (part.type !== "run") {
            out.push(part);
            continue;
        }
        const run = { ...part };
        while (run.closes && run.count > 0) {
            const kind = `${run.c}${run.opens}${run.count % 3}`;
            let found = openers.length - 1;
            const least = bottom.get(kind) ?? 0;
            while (found >= least && !matches(openers[found].run, run)) {
                found -= 1;
            }
            if (found < least) {
                bottom.set(kind, openers.length);
                break;
            }
            wrap(out, openers, found, run);
            for (const [key, value] of bottom) {
                bottom.set(key, Math.min(value, openers.length));
            }
        }
        if (run.count > 0) {
            if (run.opens) {
                openers.push({ run, index: out.length });
            }
            out.push(run);
        }
    }
    return out;
}

function matches(opener, closer) {
    const odd = (opener.closes || closer.opens) && (opener.count + closer.count) % 3 === 0
        && (opener.count % 3 !== 0 || closer.count % 3 !== 0);
    return opener.c === closer.c && !odd;
}

/// Makes what is between an opener and its closer one node.
function wrap(out, openers, found, closer) {
    const { run, index } = openers[found];
    openers.length = found + 1;
    const children = finish(out.splice(index + 1));
    const used = closer.c === "~" ? 2 : Math.min(2, run.count, closer.count);
    const type = closer.c === "~" ? "del" : used === 2 ? "strong" : "em";
    const level = depth(children) + 1;
    run.count -= used;
    closer.count -= used;
    if (run.count === 0) {
        out.pop();
        openers.pop();
    }
    // Deeper than anybody writes: the text stays, without more marks.
    out.push(...(level > MAX_DEPTH ? children : [{ type, children, depth: level }]));
}

/// Runs that found no partner are text; neighbouring texts are one.
function finish(parts) {
    const out = [];
    for (const part of parts) {
        const node = part.type === "run" ? { type: "text", text: part.c.repeat(part.count) } : part;
        const last = out.at(-1);
        if (node.type === "text" && last?.type === "text") {
            last.text += node.text;
        } else {
            out.push(node.type === "text" ? { ...node } : node);
        }
    }
    return out;
}

// What the renderer makes of Markdown, hostile Markdown included. Run: node --test

import assert from "node:assert/strict";
import test from "node:test";

import { highlight } from "../highlight.js";
import { parseInline, plainText, safeUrl } from "../inline.js";
import { MarkdownView } from "../markdown.js";
import { document } from "./dom.js";

/// The elements of a text that comes in pieces of `size` characters.
function shown(text, size = text.length || 1) {
    const target = document.createElement("div");
    const view = new MarkdownView(target);
    for (let i = 0; i < text.length; i += size) {
        view.append(text.slice(i, i + size));
    }
    view.finish();
    return target;
}

const html = (text) => shown(text).write().replace(/^<div>|<\/div>$/g, "");
const LINK = 'rel="noopener noreferrer nofollow" target="_blank"';
const link = (href, text) => `<a href="${href}" ${LINK} title="${href}">${text}</a>`;
const code = (language, body) => `<div className="codeblock fence"><div className="codehead"><span>${language}</span></div>`
    + `<pre tabIndex="0"><code>${body}</code></pre></div>`;

const BLOCKS = [
    ["", ""],
    ["one\ntwo\n\nthree", "<p>one<br></br>two</p><p>three</p>"],
    ["# A #\n## B\n#c", '<h3 className="h1">A</h3><h4 className="h2">B</h4><p>#c</p>'],
    ["a\n---\n* * *\nb", "<p>a</p><hr></hr><hr></hr><p>b</p>"],
    ["- a\n- b\n\n  c\n- d", "<ul><li><p>a</p></li><li><p>b</p><p>c</p></li><li><p>d</p></li></ul>"],
    ["1. a\n   - b\n     - c\n2. d", "<ol><li><p>a</p><ul><li><p>b</p><ul><li><p>c</p></li></ul></li></ul></li><li><p>d</p></li></ol>"],
    // Less indented than it should be, as models write it.
    ["1. a\n  - b\n2. c", "<ol><li><p>a</p><ul><li><p>b</p></li></ul></li><li><p>c</p></li></ol>"],
    ["3) a\n4) b", '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>'],
    ["It was in\n1984. A book.", "<p>It was in<br></br>1984. A book.</p>"],
    ["- [ ] a\n- [x] b", '<ul><li className="task"><p>a</p></li><li className="task done"><p>b</p></li></ul>'],
    ["> a\nb\n>\n> - c\n\nd", "<blockquote><p>a<br></br>b</p><ul><li><p>c</p></li></ul></blockquote><p>d</p>"],
    ["```\n<b>\n\n  x\n```\nafter", code("text", "&lt;b>\n\n  x\n") + "<p>after</p>"],
    ["````md\n```\n````", code("md", "```\n")],
    ["~~~\nno end", code("text", "no end\n")],
    ["1. do\n   ```\nls\n   ```\n2. b", `<ol><li><p>do</p>${code("text", "ls\n")}</li><li><p>b</p></li></ol>`],
    ["\\[\na_b_c\n\\]", '<div className="codeblock math"><pre tabIndex="0"><code>\\[\na_b_c\n\\]\n</code></pre></div>'],
    ["a\r\nb\r\n", "<p>a<br></br>b</p>"],
];

const INLINE = [
    ["*a* **b** ***c*** _d_ __e__", "<em>a</em> <strong>b</strong> <em><strong>c</strong></em> <em>d</em> <strong>e</strong>"],
    ["**a *b* c**", "<strong>a <em>b</em> c</strong>"],
    ["snake_case_name 2*3*4 * a *", "snake_case_name 2<em>3</em>4 * a *"],
    ["**这是“重点”。**后面", "<strong>这是“重点”。</strong>后面"],
    ["~~a~~ ~b~", "<del>a</del> ~b~"],
    ["`a` ``b`c`` `` ` `` `d", "<code>a</code> <code>b`c</code> <code>`</code> `d"],
    ["\\*a\\* \\q", "*a* \\q"],
    ["&lt;b&gt; &amp; &#65; &#x42; &nope; &#0;", "&lt;b> &amp; A B &amp;nope; &amp;#0;"],
    ["x<br>y<BR/>z", "x<br></br>y<br></br>z"],
    ["so \\(a_1_ + b*c*\\) is", 'so <code className="math">\\(a_1_ + b*c*\\)</code> is'],
    ["[a *b*](https://x.y/z)", link("https://x.y/z", "a <em>b</em>")],
    ["[a](<https://x.y/> \"t\") [b](https://x.y/(1))", `${link("https://x.y/", "a")} ${link("https://x.y/(1)", "b")}`],
    ["see https://x.y/a_b_c. (https://x.y/)", `see ${link("https://x.y/a_b_c", "https://x.y/a_b_c")}. (${link("https://x.y/", "https://x.y/")})`],
    ["<https://x.y/> <me@x.yz>", `${link("https://x.y/", "https://x.y/")} ${link("mailto:me@x.yz", "me@x.yz")}`],
    ["[https://x.y/](https://x.y/)", link("https://x.y/", "https://x.y/")],
    // A picture would be a request: it is a link.
    ["![cat](https://x.y/c.png)", link("https://x.y/c.png", "cat")],
];

test("blocks", () => {
    for (const [text, expected] of BLOCKS) {
        assert.equal(html(text), expected, JSON.stringify(text));
    }
});

test("text of blocks", () => {
    for (const [text, expected] of INLINE) {
        assert.equal(html(text), `<p>${expected}</p>`, JSON.stringify(text));
    }
});

test("tables", () => {
    const cell = (name, text, more = "") => `<${name}${more}${name === "th" ? ' scope="col"' : ""}>${text}</${name}>`;
    const table = (head, ...rows) => `<div className="table" tabIndex="0"><table><thead><tr>${head}</tr></thead>`
        + `<tbody>${rows.map((row) => `<tr>${row}</tr>`).join("")}</tbody></table></div>`;
    assert.equal(html("a | b\n--|--:\n1 | *2*\n3\n\nx"),
        "<p></p>" + table(cell("th", "a") + cell("th", "b", ' className="align-right"'),
            cell("td", "1") + cell("td", "<em>2</em>", ' className="align-right"')) + "<p>3</p><p>x</p>");
    assert.equal(html("Intro:\n| a |\n|---|\n| `x\\|y` | too many |"),
        `<p>Intro:</p>${table(cell("th", "a"), cell("td", "<code>x|y</code>"))}`);
    assert.equal(html("a | b\n---"), "<p>a | b</p><hr></hr>");
});

test("what comes in pieces is what comes at once", () => {
    const all = [...BLOCKS, ...INLINE].map(([text]) => text).concat([
        "a | b\n--|--\n1 | 2\n\n# t\n- x\n  | c | d |\n  |---|---|\n  | 1 | 2 |\n",
        "> > deep\n> back\n\n```js\nlet a;\n```\n\n1. x\n\n\n2. y\n   > q\n\nend **b",
    ]);
    for (const text of [...all, all.join("\n\n")]) {
        const whole = shown(text).write();
        for (const size of [1, 2, 3, 7, 50]) {
            assert.equal(shown(text, size).write(), whole, `${size}: ${JSON.stringify(text)}`);
        }
    }
});

/// Everything that can be in a tree of the renderer.
const ELEMENTS = new Set("div p h3 h4 h5 h6 ul ol li blockquote hr br pre code span strong em del a table thead tbody tr th td"
    .split(" "));

function check(node) {
    if (node.data !== undefined) {
        return;
    }
    assert.ok(ELEMENTS.has(node.name), node.name);
    for (const name of Object.keys(node)) {
        assert.ok(!/^on|style|src/.test(name), name);
    }
    if (node.name === "a") {
        assert.match(node.href, /^(https?:\/\/(?!evil)|mailto:a@b\.c)[^\s"<>]*$/);
        assert.match(node.rel, /noopener/);
    }
    node.childNodes.forEach(check);
}

const HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg><animate onbegin=alert(1)></svg>",
    "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](java\nscript:alert(1)) [d](&#106;avascript:alert(1))",
    "[a](\u0001javascript:alert(1)) [b](<javascript:alert(1)>) [c]( javascript:alert(1)) [d](vbscript:x) [e](file:///x)",
    "[a](data:text/html;base64,PHNjcmlwdD4=) ![b](data:image/svg+xml,<svg/onload=alert(1)>) <javascript:alert(1)>",
    '[a](https://x.y/" onmouseover="alert(1)) [b](https://x.y "\\" onclick=\\"alert(1)")',
    "[a](//evil.example) [b](/v1/models) [c](#x) [d](?q) [e](mailto:a@b.c?subject=<script>)",
    "```\"><script>alert(1)</script>\n</code></pre><script>alert(1)</script>\n```",
    "```js onload=alert(1)\n</span><img src=x onerror=alert(1)>\n```",
    "| <script> | b |\n|---|---|\n| <img onerror=alert(1)> | [x](javascript:alert(1)) |",
    "# <b onclick=alert(1)>x</b>\n> <iframe src=javascript:alert(1)>\n- <style>*{display:none}</style>",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;script&#62; \u202e\u0000\ufeff",
    "[![a](javascript:alert(1))](javascript:alert(1)) [[[a](b)](c)](javascript:d)",
    "<a href=\"javascript:alert(1)\">x</a> <https://x.y/\"onclick=alert(1)>",
    "[__proto__](constructor:x) ```constructor\n``` &constructor; &__proto__;",
    "```__proto__\nx\n```\n```constructor\ny\n```",
];

test("nothing of a hostile text is more than text", () => {
    for (const text of HOSTILE) {
        for (const size of [text.length, 1, 5]) {
            check(shown(text, size));
        }
    }
    // It can be read.
    assert.equal(shown("<script>alert(1)</script>").textContent, "<script>alert(1)</script>");
});

test("addresses", () => {
    for (const good of ["https://x.y/", "http://x.y/", "mailto:a@b.c"]) {
        assert.equal(safeUrl(good), good);
    }
    for (const bad of ["", "x", "/x", "//x.y", "javascript:x", " javascript:x", "java\tscript:x", "data:,x", "blob:https://x.y/1",
        "file:///x", "vbscript:x", "about:blank", "https:", "ftp://x.y/"]) {
        assert.equal(safeUrl(bad), null, bad);
    }
});

/// How many characters are read and elements made for a text and for one that is twice as long: time would depend on the
/// machine, this does not.
function created(make, count, size) {
    document.created = 0;
    shown(make(count), size);
    return document.created;
}

test("long answers are not shown again and again", () => {
    const documents = {
        paragraphs: (n) => "some words of a paragraph\n\n".repeat(n),
        "one code": (n) => `\`\`\`\n${"let x = 1;\n".repeat(n)}\`\`\`\n`,
        "one list": (n) => "- an item of a list\n".repeat(n),
        "one table": (n) => `| a | b |\n|---|---|\n${"| 1 | 2 |\n".repeat(n)}`,
        "one quote": (n) => "> a line\n>\n".repeat(n),
        "one paragraph": (n) => "a line with *emphasis*\n".repeat(n),
        "one line": (n) => "*emphasis* and other words ".repeat(n * 4),
    };
    for (const [name, make] of Object.entries(documents)) {
        // Pieces are longer for what shows its last block again at every piece.
        const size = name === "one line" ? 400 : 11;
        const [once, twice] = [created(make, 1500, size), created(make, 3000, size)];
        assert.ok(twice < 2.6 * once, `${name}: ${once} nodes, of twice the text ${twice}`);
    }
});

test("huge and deep texts", () => {
    const many = (text, count = 20_000) => text.repeat(count);
    const texts = [many(">"), many("- "), many("> - "), many("*a "), many("**a "), many("a** "), many("*a**"), many("_a*"), many("["),
        many("[a]("), many("![](x"), many("](https://x.y/)"), many("[a](https://x.y/)"), many("![", 5000) + many("](https://x.y/)", 5000),
        many("`"), Array.from({ length: 400 }, (_, i) => "`".repeat(i)).join(" "), many("`a``"), many("\\("), many("<"), many("<https:"),
        many("&"), many("&#"), many("https://"), many("https://%%"), many("|"), `${many("|a")}\n${many("|-")}\n${many("|b")}`,
        many("#"), many("# "), `# ${many(" ")}x`, `\`\`\`${many(" ")}\``, many("- x\n  "), many("a|b\n-|-\n", 3000), many("~~a"),
        many("1. "), many("$$"), many("\\["), many(" "), `a${many(" ")}\nb`, many("x", 1_000_000), `${"**".repeat(3000)}a${"**".repeat(3000)}`];
    for (const text of texts) {
        const target = shown(text);
        check(target);
        let depth = 0;
        for (let level = [target]; level.length; level = level.flatMap((node) => node.childNodes ?? [])) {
            depth += 1;
        }
        assert.ok(depth < 60, `${depth} levels: ${text.slice(0, 20)}`);
    }
});

test("random texts lose no word and are the same in pieces", () => {
    let seed = 7;
    const random = (below) => {
        seed = (seed * 1103515245 + 12345) % 2147483648;
        return Math.floor(seed / 65536) % below;
    };
    const bits = ["a", "b ", " ", "\n", "\n\n", "*", "**", "_", "`", "```", "- ", "1. ", "> ", "# ", "|", "---", "[", "](https://x.y/)",
        "<", "&lt;", "\\", "~~", "$$", "\\(", "\\)", "    ", "\t", "é", "😀"];
    for (let round = 0; round < 3000; round += 1) {
        // Codes show the first word of their head only, and tables as many columns as their own.
        const from = round % 2 ? bits : bits.filter((bit) => !["```", "~~", "|"].includes(bit));
        const text = Array.from({ length: random(40) }, () => from[random(from.length)]).join("");
        const whole = shown(text);
        check(whole);
        if (from !== bits) {
            const letters = (s) => s.replace(/[^abé😀]/gu, "");
            assert.equal(letters(whole.textContent), letters(text), JSON.stringify(text));
        }
        assert.equal(shown(text, 1 + random(4)).write(), whole.write(), JSON.stringify(text));
    }
});

test("colours of code change no character", () => {
    const codes = { rs: "fn f<'a>(x: &'a str) -> char { '\\'' } // c\n/* open", py: 'def f():\n    """doc\n""" # c\n    return "a\\"b"',
        js: "const a = `x${1}\n`; // c\n/* y */ 0x1F", sh: "echo \"$#\" # c", json: '{"a": [1.5e3, true]}', css: "#a { color: #fff; } /* c */",
        sql: "SELECT 'it' -- c\nFROM t" };
    for (const [language, text] of Object.entries(codes)) {
        const parts = highlight(text, language);
        assert.equal(parts.map((part) => part.text).join(""), text, language);
        assert.ok(parts.some(({ type }) => type), language);
    }
    const types = highlight("let x = 'c'; // y", "rust").filter(({ type }) => type).map(({ type, text }) => `${type} ${text}`);
    assert.deepEqual(types, ["word let", "string 'c'", "comment // y"]);
    for (const unknown of ["", "nope", "constructor", "__proto__"]) {
        assert.equal(highlight("x", unknown), null);
    }
});

test("words without marks", () => {
    assert.equal(plainText(parseInline("**a** `b`\n[c](https://x.y/)")), "a b\nc");
});

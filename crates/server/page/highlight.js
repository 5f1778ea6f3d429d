// Colours for code: comments, strings, numbers and words of the language. One lexer for many languages; it is wrong now
// and then, and never changes a character. Pure, and linear: one expression, each match where the one before ended.

const MOST = 50_000;

const C_LIKE = "if else for while do switch case default break continue return struct enum union const static void " +
    "new delete this class public private protected virtual override try catch finally throw namespace using template " +
    "typename extends implements import package interface super instanceof null true false nullptr sizeof typedef " +
    "int long short char float double bool boolean unsigned signed auto var final abstract";
const WORDS = {
    c: C_LIKE,
    js: "if else for while do switch case default break continue return function const let var class extends new this " +
        "super import export from of in async await yield try catch finally throw typeof instanceof void delete null " +
        "undefined true false static get set interface type enum implements readonly as",
    py: "if elif else for while break continue return def class import from as with try except finally raise pass " +
        "lambda yield async await global nonlocal in is not and or None True False assert del match case self",
    rs: "if else for while loop match break continue return fn let mut const static struct enum trait impl type use " +
        "mod pub crate self Self super where as in ref move async await dyn unsafe extern true false",
    go: "if else for range switch case default break continue return func var const type struct interface map chan " +
        "package import go defer select fallthrough nil true false goto",
    sh: "if then else elif fi for while until do done case esac in function return exit export local set unset echo cd",
    rb: "if elsif else unless while until for do end def class module return yield begin rescue ensure raise require " +
        "self nil true false and or not in then case when attr_accessor puts",
    sql: "select from where insert into values update set delete create table drop alter join left right inner outer " +
        "on group by order having limit offset union all distinct as and or not null is in like between exists case " +
        "when then else end primary key foreign references index view with default",
    lua: "if then else elseif end for while do repeat until function local return break nil true false and or not in",
    json: "true false null",
    css: "",
};
const SAME = { cpp: "c", "c++": "c", h: "c", hpp: "c", cs: "c", csharp: "c", "c#": "c", java: "c", kotlin: "c", swift: "c",
    cuda: "c", php: "c", dart: "c", scala: "c", "javascript": "js", jsx: "js", ts: "js", tsx: "js", typescript: "js",
    mjs: "js", python: "py", python3: "py", rust: "rs", golang: "go", bash: "sh", shell: "sh", zsh: "sh", console: "sh",
    ruby: "rb", mysql: "sql", postgresql: "sql", sqlite: "sql", jsonc: "json", toml: "sh", yaml: "sh", yml: "sh",
    ini: "sh", dockerfile: "sh", makefile: "sh", r: "py", scss: "css" };

/// How comments begin.
const HASH = new Set(["py", "sh", "rb"]);
const DASHES = new Set(["sql", "lua"]);

/// The parts of a code, `{type, text}` with type "comment", "string", "number", "word" or null; null for a language that
/// is not known, and for very long codes.
export function highlight(code, language) {
    const name = Object.hasOwn(SAME, language) ? SAME[language] : language;
    if (!Object.hasOwn(WORDS, name) || code.length > MOST) {
        return null;
    }
    const words = new Set(WORDS[name].split(" "));
    const shape = lexer(name);
    const parts = [];
    let end = 0;
    const add = (type, text) => {
        if (type === null && parts.at(-1)?.type === null) {
            parts.at(-1).text += text;
        } else if (text) {
            parts.push({ type, text });
        }
    };
    for (const found of code.matchAll(shape)) {
        add(null, code.slice(end, found.index));
        const { comment, string, number } = found.groups;
        const [text] = found;
        const isWord = words.has(name === "sql" ? text.toLowerCase() : text);
        add(comment ? "comment" : string ? "string" : number ? "number" : isWord ? "word" : null, text);
        end = found.index + text.length;
    }
    add(null, code.slice(end));
    return parts;
}

function lexer(name) {
    const line = HASH.has(name) ? "(?<![^\\s])#[^\\n]*" : DASHES.has(name) ? "--[^\\n]*" : name === "css" ? "(?!)" : "\\/\\/[^\\n]*";
    const long = name === "py" ? '|"""[^]*?(?:"""|$)|\'\'\'[^]*?(?:\'\'\'|$)' : "";
    const block = HASH.has(name) ? "" : "|\\/\\*[^]*?(?:\\*\\/|$)";
    // A string that does not end on its line is none; templates and strings of shells may have lines.
    const quote = (q) => `${q}(?:[^${q}\\\\\\n]|\\\\[^])*${q}`;
    // Rust's lifetimes have one quote.
    const single = name === "rs" ? "'(?:[^'\\\\\\n]|\\\\[^]{1,8})'" : quote("'");
    const back = name === "js" || name === "go" ? "|`(?:[^`\\\\]|\\\\[^])*(?:`|$)" : "";
    return new RegExp(`(?<comment>${line}${block})|(?<string>${[long.slice(1), quote('"'), single].filter(Boolean).join("|")}${back})`
        + "|(?<number>\\b\\d[\\w.]*)|[\\p{L}_$][\\p{L}\\p{N}_$]*", "gu");
}

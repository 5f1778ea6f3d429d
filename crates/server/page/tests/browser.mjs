// The chat page in a real browser, against a real server. See CONTRIBUTING.md:
//
//     node browser.mjs MINFER [--chromium PATH] [--shots FOLDER] [--files FOLDER]
//
// MINFER is the program, which serves its default model. Requests go through a proxy here, so that a scene can answer in
// the server's place: with hostile text, or with a connection that breaks. With --files, the page's files come from a
// folder instead of the program, under the program's headers. playwright-core is looked for from the current folder.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";

import { HOSTILE, RICH } from "./replies.js";

const { values: options, positionals: [program] } = parseArgs({
    allowPositionals: true,
    options: { chromium: { type: "string", default: "/usr/bin/chromium" }, shots: { type: "string" }, files: { type: "string" },
        only: { type: "string" } },
});
const { chromium } = createRequire(path.join(process.cwd(), "x.js"))("playwright-core");
const folder = mkdtempSync(path.join(tmpdir(), "minfer-page-"));
const KEY = "a-key-of-this-test";

/// `minfer serve`: `{url, process}`.
async function serve(...more) {
    const process = spawn(program, ["serve", "--port", "0", "--ctx", "2048", "--device", "cpu", ...more],
        { stdio: ["ignore", "pipe", "inherit"] });
    let line = "";
    for await (const data of process.stdout) {
        line += data;
        if (line.includes("\n")) {
            break;
        }
    }
    const [, url] = /listening on (http:\S+)/.exec(line) ?? assert.fail(`the server said ${JSON.stringify(line)}`);
    process.stdout.resume();
    return { url, process };
}

/// A server before the server. `reply(request body, response)` answers chats in its place, if it is there.
async function proxy(upstream) {
    const self = { reply: null, asked: [] };
    const server = http.createServer(async (request, response) => {
        const parts = [];
        for await (const part of request) {
            parts.push(part);
        }
        const body = Buffer.concat(parts);
        if (request.url === "/v1/chat/completions") {
            self.asked.push(JSON.parse(body));
            if (self.reply) {
                self.reply(self.asked.at(-1), response);
                return;
            }
        }
        const onward = http.request(upstream + request.url, { method: request.method, headers: request.headers }, (answer) => {
            const own = options.files && /^\/(page\/[\w.]+)?$/.test(request.url) && answer.statusCode === 200;
            if (own) {
                const text = readFileSync(path.join(options.files, request.url === "/" ? "index.html" : request.url.slice(6)));
                response.writeHead(200, { ...answer.headers, etag: "", "content-length": text.length });
                answer.resume();
                response.end(text);
                return;
            }
            response.writeHead(answer.statusCode, answer.headers);
            answer.on("data", (data) => response.write(data));
            answer.on("end", () => response.end());
            answer.on("error", () => response.destroy());
        });
        onward.on("error", () => response.destroy());
        response.on("close", () => onward.destroy());
        onward.end(body);
    });
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    self.url = `http://127.0.0.1:${server.address().port}/`;
    self.close = () => {
        server.closeAllConnections();
        server.close();
    };
    return self;
}

const event = (value) => `data: ${JSON.stringify(value)}\n\n`;
const chunk = (delta, finish = null) => event({ model: "fake", choices: [{ index: 0, delta, finish_reason: finish }] });

/// Streams a text in pieces of some characters, then its usage.
const fake = (text, { size = 12, pause = 0, head = [] } = {}) => async (_, response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(chunk({ role: "assistant", content: "" }));
    head.forEach((delta) => response.write(chunk(delta)));
    for (let i = 0; i < text.length && !response.destroyed; i += size) {
        response.write(chunk({ content: text.slice(i, i + size) }));
        if (pause) {
            await new Promise((resolve) => setTimeout(resolve, pause));
        }
    }
    response.write(chunk({}, "stop"));
    response.write(event({ choices: [], usage: { prompt_tokens: 20, completion_tokens: Math.ceil(text.length / size) } }));
    response.end("data: [DONE]\n\n");
};

/// What a scene has: a page of its own, with an empty storage.
class Scene {
    constructor(page, server) {
        this.page = page;
        this.server = server;
        this.input = page.getByLabel("Message", { exact: true });
        this.answers = page.locator(".message.assistant");
        this.messages = page.getByRole("list", { name: "Messages" });
    }

    async send(text) {
        await this.input.fill(text);
        await this.input.press("Enter");
    }

    /// Until nothing is under way.
    async done() {
        await this.page.locator(".message.live").waitFor({ state: "detached", timeout: 60_000 });
        await this.page.locator("#send").waitFor();
    }

    async shot(name) {
        if (options.shots) {
            mkdirSync(options.shots, { recursive: true });
            await this.page.screenshot({ path: path.join(options.shots, `${name}.png`) });
        }
    }

    stored() {
        return this.page.evaluate(() => Object.fromEntries(Object.entries(localStorage)));
    }
}

const scenes = [];
const scene = (name, play, context = {}) => scenes.push({ name, play, context });

scene("an answer of the model streams, is measured and stored", async (s) => {
    await s.page.getByText("What shall we talk about?").waitFor();
    await s.shot("empty");
    await s.send("What is the capital of France?");
    const answer = s.answers.last();
    await answer.getByText(/\S+/).first().waitFor();
    const early = (await answer.locator(".markdown").innerText()).length;
    await s.done();
    const text = await answer.locator(".markdown").innerText();
    assert.ok(text.length > 0, "nothing came");
    assert.ok(early < text.length, "it came all at once");
    assert.match(await answer.locator(".numbers").innerText(), /^\d+ tokens · [\d.]+ tokens\/s · first after [\d.]+ s · smollm2/i);
    assert.match(await s.page.locator("#usage").innerText(), /^\d+ of 2,048 tokens/);
    assert.equal((await s.page.locator("#live").innerText()).trim().slice(0, 10), text.slice(0, 10));
    await s.shot("answer");
    await s.page.reload();
    await s.answers.first().waitFor();
    assert.equal(await s.answers.last().locator(".markdown").innerText(), text);
    assert.equal(await s.page.title(), "What is the capital of France? – minfer");
});

scene("the page keeps to its policy and to its server", async (s) => {
    await s.page.getByRole("button", { name: "Settings" }).click();
    await s.page.keyboard.press("Escape");
    const asked = s.requests.map((url) => new URL(url).origin);
    assert.deepEqual([...new Set(asked)], [new URL(s.server.url).origin]);
});

scene("stop keeps what has come; answering again makes a second version", async (s) => {
    s.server.reply = fake("word ".repeat(500), { size: 10, pause: 40 });
    await s.send("Go");
    await s.page.waitForFunction(() => document.querySelector(".message.assistant .markdown")?.innerText.length > 20);
    await s.page.getByRole("button", { name: "Stop" }).click();
    await s.done();
    const first = await s.answers.last().locator(".markdown").innerText();
    assert.ok(first.length > 20);
    assert.match(await s.answers.last().innerText(), /Stopped\./);
    await s.answers.last().getByRole("button", { name: "Answer again" }).click();
    await s.page.getByText("2 of 2").waitFor();
    await s.page.waitForFunction(() => document.querySelector(".message.assistant .markdown")?.innerText.length > 20);
    await s.page.keyboard.press("Escape");
    await s.done();
    await s.page.getByRole("button", { name: "Version before" }).click();
    assert.equal(await s.answers.last().locator(".markdown").innerText(), first);
    await s.page.reload();
    await s.page.getByText("1 of 2").waitFor();
});

scene("an edited message begins a branch", async (s) => {
    s.server.reply = fake("first");
    await s.send("one");
    await s.done();
    s.server.reply = fake("second");
    await s.page.locator(".message.user").hover();
    await s.page.locator(".message.user").getByRole("button", { name: "Edit" }).click();
    await s.page.getByLabel("Text of the message").fill("two");
    await s.page.getByLabel("Text of the message").press("Control+Enter");
    await s.messages.getByText("second").waitFor();
    await s.done();
    assert.deepEqual(s.server.asked.at(-1).messages, [{ role: "user", content: "two" }]);
    await s.page.getByRole("button", { name: "Version before" }).click();
    await s.messages.getByText("first", { exact: true }).waitFor();
    assert.equal(await s.page.locator(".message").count(), 2);
});

scene("a hostile answer is text", async (s) => {
    await s.page.exposeFunction("pwned", () => assert.fail("a script ran"));
    s.server.reply = fake(HOSTILE, { size: 7 });
    await s.send("Attack me");
    await s.done();
    const found = await s.answers.last().evaluate((answer) => ({
        bad: [...answer.querySelectorAll("script, img, iframe, object, style, form, input, video, svg:not(.icon)")].map((e) => e.outerHTML),
        handlers: [...answer.querySelectorAll("*")].flatMap((e) => [...e.attributes].map((a) => a.name)).filter((name) => /^on|style/.test(name)),
        links: [...answer.querySelectorAll("a")].map((a) => a.protocol),
    }));
    assert.deepEqual(found.bad, []);
    assert.deepEqual(found.handlers, []);
    assert.ok(found.links.length && found.links.every((protocol) => /^(https?|mailto):$/.test(protocol)), String(found.links));
    assert.match(await s.answers.last().innerText(), /<script>pwned\(\)<\/script>/);
    await s.shot("hostile");
    await s.page.reload();
    await s.answers.first().waitFor();
    assert.equal(await s.page.evaluate(() => document.querySelectorAll("#messages :is(script, img, iframe)").length), 0);
    assert.ok(s.requests.every((url) => url.startsWith(s.server.url)));
});

scene("markdown, code and its copy", async (s) => {
    s.server.reply = fake(RICH, { head: [{ reasoning_content: "They want everything at once.\nSo be it." }] });
    await s.send("Show me everything");
    await s.done();
    const answer = s.answers.last();
    for (const name of ["h3", "h4", "strong", "em", "del", "ul ul", "ol", "blockquote", "table", "pre code", "hr", "a"]) {
        assert.ok(await answer.locator(`.markdown ${name}`).count(), name);
    }
    assert.equal(await answer.locator("details[open]").count(), 0);
    await answer.getByRole("button", { name: "Copy the code" }).first().click();
    assert.match(await s.page.evaluate(() => navigator.clipboard.readText()), /^fn main\(\) \{\n/);
    await answer.getByText("Reasoning").click();
    await answer.getByText("So be it.").waitFor();
    await s.page.evaluate(() => { document.querySelector("#scroll").scrollTop = 0; });
    await s.shot("markdown");
    await s.page.emulateMedia({ colorScheme: "dark" });
    await s.shot("markdown-dark");
});

scene("the text is followed to its end, unless the reader goes up", async (s) => {
    s.server.reply = fake("a line of text\n\n".repeat(150), { size: 200, pause: 25 });
    await s.send("Write much");
    const rest = () => s.page.evaluate(() => {
        const e = document.querySelector("#scroll");
        return e.scrollHeight - e.scrollTop - e.clientHeight;
    });
    await s.page.waitForFunction(() => document.querySelector("#scroll").scrollHeight > 2000);
    assert.ok(await rest() < 60);
    await s.page.locator("#scroll").hover();
    await s.page.mouse.wheel(0, -600);
    await s.done();
    assert.ok(await rest() > 400);
    await s.page.getByRole("button", { name: "Jump to the latest" }).click();
    assert.ok(await rest() < 60);
});

scene("calls of tools are shown, and their results sent", async (s) => {
    s.server.reply = (_, response) => {
        response.writeHead(200, { "content-type": "text/event-stream" });
        const call = (index, id, name, text) => ({ tool_calls: [{ index, id, function: { name, arguments: text } }] });
        response.write(chunk(call(0, "call_1", "get_weather", '{"city": "Par')) + chunk({ tool_calls: [{ index: 0, function: { arguments: 'is", "days": 3}' } }] }));
        response.write(chunk(call(1, "call_2", "now", "{}")) + chunk({}, "tool_calls"));
        response.end("data: [DONE]\n\n");
    };
    await s.send("What is the weather?");
    await s.done();
    await s.page.getByText("get_weather", { exact: true }).waitFor();
    assert.match(await s.page.locator(".call dl").first().innerText(), /city\s+Paris\s+days\s+3/);
    await s.page.getByLabel("What get_weather gives back").fill("Sunny");
    await s.page.getByLabel("What now gives back").fill("noon");
    await s.shot("tools");
    s.server.reply = fake("It is sunny.");
    await s.page.getByRole("button", { name: "Send the results" }).click();
    await s.messages.getByText("It is sunny.").waitFor();
    assert.deepEqual(s.server.asked.at(-1).messages.slice(-2), [
        { role: "tool", content: "Sunny", tool_call_id: "call_1" }, { role: "tool", content: "noon", tool_call_id: "call_2" }]);
});

scene("settings are sent, and empty ones are not", async (s) => {
    s.server.reply = fake("ok");
    await s.send("plain");
    await s.done();
    assert.deepEqual(Object.keys(s.server.asked.at(-1)).sort(), ["messages", "model", "stream", "stream_options"]);
    await s.page.keyboard.press("Alt+s");
    await s.page.getByLabel("System prompt").fill("Be brief.");
    await s.page.getByLabel("Temperature").fill("0.35");
    await s.page.getByLabel("Top-k").fill("7");
    await s.page.getByLabel("Top-p").fill("7");
    await s.page.getByLabel(/^More fields/).fill('{"n": 2}');
    await s.page.getByText('"n" is for the page to set.').waitFor();
    assert.equal(await s.page.getByLabel("Top-p").getAttribute("aria-invalid"), "true");
    await s.page.getByLabel(/^More fields/).fill('{"logit_bias": {"1": -1}}');
    await s.shot("settings");
    await s.page.keyboard.press("Escape");
    await s.send("set");
    await s.done();
    const { messages, temperature, top_k, top_p, logit_bias } = s.server.asked.at(-1);
    assert.deepEqual({ temperature, top_k, top_p, logit_bias }, { temperature: 0.35, top_k: 7, top_p: undefined, logit_bias: { 1: -1 } });
    assert.equal(messages[0].content, "Be brief.");
    await s.page.reload();
    await s.page.keyboard.press("Alt+s");
    assert.equal(await s.page.getByLabel("Temperature").inputValue(), "0.35");
});

scene("what the server refuses is said in its words, and can be tried again", async (s) => {
    await s.page.keyboard.press("Alt+s");
    await s.page.getByLabel(/^More fields/).fill('{"no_such_field": 1}');
    await s.page.keyboard.press("Escape");
    await s.send("Hello?");
    await s.page.getByText("no_such_field: is not supported").waitFor();
    await s.shot("refused");
    assert.equal(await s.page.locator(".message.user .body").innerText(), "Hello?");
    await s.page.keyboard.press("Alt+s");
    await s.page.getByRole("button", { name: "Empty all fields" }).click();
    await s.page.keyboard.press("Escape");
    s.server.reply = fake("Here.");
    await s.page.getByRole("button", { name: "Try again" }).click();
    await s.messages.getByText("Here.").waitFor();
    assert.equal(await s.page.locator(".versions").count(), 0);
});

scene("a connection that breaks keeps what has come", async (s) => {
    s.server.reply = (_, response) => {
        response.writeHead(200, { "content-type": "text/event-stream" });
        response.write(chunk({ content: "Half of an answer" }));
        setTimeout(() => response.destroy(), 300);
    };
    await s.send("Go");
    await s.page.getByText(/The connection (broke|ended) before/).waitFor();
    await s.messages.getByText("Half of an answer").waitFor();
    s.server.reply = (_, response) => {
        response.writeHead(200, { "content-type": "text/event-stream" });
        response.end(chunk({ content: "Quarter" }) + event({ error: { message: "the device is out of memory" } }));
    };
    await s.page.getByRole("button", { name: "Try again" }).click();
    await s.page.getByText("the device is out of memory").waitFor();
    await s.shot("broken");
    await s.page.reload();
    await s.page.getByText("the device is out of memory").waitFor();
    await s.messages.getByText("Quarter").waitFor();
});

scene("a page that is closed while an answer comes keeps its beginning", async (s) => {
    s.server.reply = fake("word ".repeat(500), { size: 20, pause: 50 });
    await s.send("Go");
    await s.page.waitForFunction(() => document.querySelector(".message.assistant .markdown")?.innerText.length > 100);
    await s.page.reload();
    await s.page.getByText("The page was closed before").waitFor();
    assert.ok((await s.answers.last().locator(".markdown").innerText()).length > 50);
});

scene("conversations: draft, second one, rename, search, delete, undo, export, import", async (s) => {
    const { page } = s;
    s.server.reply = fake("Answer one");
    await s.send("About apples");
    await s.done();
    await s.input.fill("a draft about apples");
    await page.getByRole("button", { name: "New conversation", exact: true }).first().click();
    assert.equal(await s.input.inputValue(), "");
    await s.send("About pears");
    await s.done();
    await page.locator("#conversations").getByRole("button", { name: "About apples", exact: true }).click();
    assert.equal(await s.input.inputValue(), "a draft about apples");
    await page.getByRole("button", { name: "Rename About apples" }).click();
    await page.getByRole("textbox", { name: "Name of the conversation" }).fill("Fruit");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Fruit" }).waitFor();
    await page.getByLabel("Search conversations").fill("PEARS");
    assert.deepEqual(await page.locator("#conversations .open").allInnerTexts(), ["About pears"]);
    await page.getByLabel("Search conversations").fill("");
    await s.shot("conversations");
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export all" }).click()]);
    const file = path.join(folder, "all.json");
    await download.saveAs(file);
    assert.equal(JSON.parse(readFileSync(file, "utf8")).conversations.length, 2);
    await page.getByRole("button", { name: "Delete Fruit" }).click();
    assert.equal(await page.locator("#conversations li").count(), 1);
    await page.getByRole("button", { name: "Undo" }).click();
    assert.equal(await page.locator("#conversations li").count(), 2);
    assert.equal(await s.input.inputValue(), "a draft about apples");
    await page.locator("#import-file").setInputFiles(file);
    await page.getByText("Imported 2 conversations.").waitFor();
    assert.equal(await page.locator("#conversations li").count(), 4);
    const broken = path.join(folder, "broken.json");
    writeFileSync(broken, '{"format": "minfer-conversations", "version": 1, "conversations": [{}]}');
    await page.locator("#import-file").setInputFiles(broken);
    await page.getByText("Conversation 1 of the file is broken.").waitFor();
});

scene("an answer goes on while another conversation is read", async (s) => {
    s.server.reply = fake("slow ".repeat(60), { size: 10, pause: 40 });
    await s.send("Slow one");
    await s.page.locator(".message.live").waitFor();
    await s.page.keyboard.press("Alt+n");
    await s.page.getByRole("img", { name: "answering" }).waitFor();
    s.server.reply = fake("quick");
    await s.send("Quick one");
    await s.messages.getByText("quick", { exact: true }).waitFor();
    await s.page.getByRole("button", { name: "Slow one", exact: true }).click();
    await s.done();
    assert.equal((await s.answers.last().locator(".markdown").innerText()).trim().split(/\s+/).length, 60);
});

scene("by keyboard alone", async (s) => {
    const { page } = s;
    const focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.getAttribute("aria-label"));
    assert.equal(await focused(), "input");
    s.server.reply = fake("word ".repeat(200), { size: 10, pause: 40 });
    await page.keyboard.type("one");
    await page.keyboard.press("Shift+Enter");
    await page.keyboard.type("two");
    await page.keyboard.press("Enter");
    await page.locator(".message.live").waitFor();
    assert.equal(s.server.asked.at(-1).messages[0].content, "one\ntwo");
    await page.keyboard.press("Escape");
    await s.done();
    assert.equal(await focused(), "input");
    s.server.reply = fake("again");
    await page.keyboard.press("Alt+r");
    await s.messages.getByText("again", { exact: true }).waitFor();
    await s.done();
    await page.keyboard.press("ArrowUp");
    assert.equal(await focused(), "Text of the message");
    await page.keyboard.press("Escape");
    assert.equal(await focused(), "Edit");
    await page.keyboard.press("/");
    assert.equal(await focused(), "input");
    await page.keyboard.press("Alt+n");
    await page.keyboard.type("other");
    await page.keyboard.press("Enter");
    await s.done();
    await page.keyboard.press("Alt+ArrowDown");
    await page.getByText("2 of 2").waitFor();
    await page.locator("body").click({ position: { x: 640, y: 300 } });
    await page.keyboard.press("?");
    await page.getByRole("heading", { name: "Keyboard" }).waitFor();
    await s.shot("keyboard");
    await page.keyboard.press("Escape");
    // All that can be done with a pointer is in the order of the keys.
    const seen = new Set();
    await page.evaluate(() => document.activeElement.blur());
    for (let i = 0; i < 60; i += 1) {
        await page.keyboard.press("Tab");
        seen.add(await focused());
    }
    for (const name of ["new", "search", "open-sidebar", "model", "theme", "open-settings", "input", "Copy", "Answer again", "Edit"]) {
        assert.ok(seen.has(name), `${name} is not among ${[...seen]}`);
    }
});

for (const width of [320, 360]) {
    scene(`a phone of ${width} pixels`, async (s) => {
        const { page } = s;
        const fits = async (what) => assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth
            && document.querySelector("#scroll").scrollWidth <= document.querySelector("#scroll").clientWidth), what);
        await fits("empty");
        s.server.reply = fake(RICH);
        await s.input.fill("A question of a person with a phone, which is longer than the screen is wide");
        await page.getByRole("button", { name: "Send" }).tap();
        await s.done();
        await fits("an answer");
        await s.shot(`phone-${width}`);
        await page.evaluate(() => { document.querySelector("#scroll").scrollTop = 0; });
        await s.shot(`phone-${width}-top`);
        await page.getByRole("button", { name: "Conversations" }).tap();
        await page.locator("#sidebar").waitFor();
        await s.shot(`phone-${width}-list`);
        await page.keyboard.press("Escape");
        await page.locator("#sidebar").waitFor({ state: "hidden" });
        await page.getByRole("button", { name: "Settings" }).tap();
        assert.ok(await page.evaluate(() => document.querySelector("#settings").scrollWidth <= document.querySelector("#settings").clientWidth));
        await s.shot(`phone-${width}-settings`);
        const small = await page.evaluate(() => [...document.querySelectorAll("button, a, select, input, textarea")]
            .filter((e) => e.checkVisibility() && e.getBoundingClientRect().width < 24).map((e) => e.outerHTML));
        assert.deepEqual(small, []);
    }, { viewport: { width, height: 720 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 });
}

scene("light, dark, and as the system has it", async (s) => {
    const { page } = s;
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    await page.emulateMedia({ colorScheme: "light" });
    const light = await ground();
    await page.emulateMedia({ colorScheme: "dark" });
    const dark = await ground();
    assert.notEqual(light, dark);
    await page.getByRole("button", { name: /^Theme/ }).click();
    assert.equal(await ground(), light);
    await page.getByRole("button", { name: /^Theme/ }).click();
    await page.emulateMedia({ colorScheme: "light" });
    assert.equal(await ground(), dark);
    await page.reload();
    assert.equal(await ground(), dark);
    await s.shot("dark");
});

scene("every text has enough contrast", async (s) => {
    s.server.reply = fake(RICH);
    await s.send("Show me everything");
    await s.done();
    for (const colorScheme of ["light", "dark"]) {
        await s.page.emulateMedia({ colorScheme });
        // Buttons change slowly.
        await s.page.waitForTimeout(300);
        assert.deepEqual(await s.page.evaluate(lowContrast), [], colorScheme);
    }
});

/// Texts with a contrast below 4.5 (WCAG 2, AA).
function lowContrast() {
    const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
    const rgba = (color) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const luminance = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const ground = (e) => {
        for (let at = e; at; at = at.parentElement) {
            const color = rgba(getComputedStyle(at).backgroundColor);
            if (color[3] === 255) {
                return color;
            }
        }
        return [255, 255, 255, 255];
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const e = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !e.checkVisibility({ checkOpacity: true }) || e.closest(".hidden, .skip, :disabled")) {
            continue;
        }
        const [a, b] = [luminance(rgba(getComputedStyle(e).color)), luminance(ground(e))].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        if (ratio < 4.5) {
            found.push(`${ratio.toFixed(2)} ${e.tagName}.${e.className}: ${walker.currentNode.data.slice(0, 30)}`);
        }
    }
    return found;
}

scene("a key is asked for, used, kept for the tab, or remembered", async (s) => {
    const { page } = s;
    const dialog = page.locator("#key");
    await page.getByText("This server needs an API key.").waitFor();
    await s.shot("key");
    await page.getByLabel("Key", { exact: true }).fill("wrong");
    await page.keyboard.press("Enter");
    await page.getByText(/The server refuses the key/).waitFor();
    await page.getByLabel("Key", { exact: true }).fill(KEY);
    await page.keyboard.press("Enter");
    await dialog.waitFor({ state: "hidden" });
    await page.locator("#model option").first().waitFor({ state: "attached" });
    assert.ok(!Object.values(await s.stored()).includes(KEY));
    await page.reload();
    await page.locator("#model option").first().waitFor({ state: "attached" });
    assert.equal(await dialog.isVisible(), false);
    await s.send("Say hello.");
    await s.done();
    assert.ok((await s.answers.last().locator(".markdown").innerText()).length);
    // The key becomes another one: what was written is not lost.
    await page.evaluate(() => sessionStorage.setItem("minfer.key", "old"));
    await s.send("And again.");
    await page.getByText(/The server refuses the key/).waitFor();
    await page.getByLabel("Key", { exact: true }).fill(KEY);
    await page.getByLabel("Remember it in this browser").check();
    await page.getByRole("button", { name: "Use the key" }).click();
    await s.page.locator(".message.live").waitFor();
    await s.done();
    assert.equal(await s.answers.count(), 2);
    assert.equal(await page.locator(".versions").count(), 0);
    assert.ok(Object.values(await s.stored()).includes(KEY));
}, { locked: true });

scene("a server that goes while it answers", async (s) => {
    await s.send("Count from one to one hundred in words.");
    await s.page.waitForFunction(() => document.querySelector(".message.assistant .markdown")?.innerText.length > 20);
    s.process.kill("SIGKILL");
    await s.page.getByText(/The connection (broke|ended) before/).waitFor();
    assert.ok((await s.answers.last().locator(".markdown").innerText()).length > 20);
    await s.send("Are you there?");
    await s.page.getByText("The server cannot be reached.").waitFor();
    assert.equal(await s.page.locator(".message.user").last().locator(".body").innerText(), "Are you there?");
    await s.shot("gone");
});

const browser = await chromium.launch({ executablePath: options.chromium, args: ["--no-sandbox"] });
const keys = path.join(folder, "keys");
writeFileSync(keys, `${KEY}\n`);
const plain = await serve();
const locked = await serve("--api-key-file", keys);
let failed = 0;
for (const { name, play, context: { locked: needsKey, ...context } } of scenes) {
    if (options.only && !name.includes(options.only)) {
        continue;
    }
    const { url, process } = needsKey ? locked : plain;
    const server = await proxy(url);
    const tab = await browser.newContext({ viewport: { width: 1280, height: 800 }, colorScheme: "light", acceptDownloads: true,
        permissions: ["clipboard-read", "clipboard-write"], ...context });
    const page = await tab.newPage();
    page.setDefaultTimeout(20_000);
    const complaints = [];
    const requests = [];
    page.on("pageerror", (error) => complaints.push(String(error)));
    // Refusals by the policy are told here; so are requests that fail, which scenes mean to.
    page.on("console", (message) => /error|warning/.test(message.type()) && !/Failed to load resource/.test(message.text())
        && complaints.push(message.text()));
    page.on("request", (request) => requests.push(request.url()));
    try {
        await page.goto(server.url);
        await play(Object.assign(new Scene(page, server), { requests, process }));
        assert.deepEqual(complaints, []);
        console.log(`ok      ${name}`);
    } catch (error) {
        failed += 1;
        console.log(`FAILED  ${name}\n${error.stack}\n${complaints.join("\n")}`);
        if (options.shots) {
            await page.screenshot({ path: path.join(options.shots, `failed-${failed}.png`) }).catch(() => {});
        }
    }
    await tab.close();
    server.close();
}
await browser.close();
plain.process.kill();
locked.process.kill();
console.log(failed ? `${failed} failed` : "all well");
process.exit(failed ? 1 : 0);

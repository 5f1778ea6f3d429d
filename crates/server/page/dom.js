// Small help with elements. There is no way here to make any of a text but text.

/// The element of the page with an id.
export const byId = (id) => document.getElementById(id);

/// An element: `el("button", {class: "quiet", onclick: f}, "text", child)`. Properties are set as properties; `class`,
/// `data-…`, `aria-…`, `role` and `for` as attributes. What is null or false among the children is left out.
export function el(name, properties = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
        if (/^(class|for|role|data-|aria-)/.test(key)) {
            element.setAttribute(key, value);
        } else {
            element[key] = value;
        }
    }
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
    return element;
}

/// One of the symbols of index.html.
export function icon(name) {
    const svg = byId("icon").content.firstElementChild.cloneNode(true);
    svg.firstElementChild.setAttribute("href", `#i-${name}`);
    return svg;
}

/// A button that is an icon; its label is read and shown as its title.
export function iconButton(name, label, onclick, properties = {}) {
    return el("button", { type: "button", class: "quiet", "aria-label": label, title: label, onclick, ...properties },
        icon(name));
}

/// Puts a text on the clipboard. Pages that did not come encrypted or from this machine have to do it the old way.
export async function copy(text) {
    if (navigator.clipboard && window.isSecureContext) {
        await navigator.clipboard.writeText(text);
        return;
    }
    const field = el("textarea", { value: text, class: "hidden", readOnly: true, "aria-hidden": "true" });
    const { activeElement } = document;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    activeElement?.focus();
    if (!copied) {
        throw new Error("the browser does not allow it");
    }
}

/// A button that copies, and shows that it did.
export function copyButton(label, text) {
    const button = iconButton("copy", label, async () => {
        let done = "check";
        try {
            await copy(text());
        } catch {
            done = "close";
        }
        button.replaceChildren(icon(done));
        button.setAttribute("aria-label", done === "check" ? "Copied" : "Could not copy");
        setTimeout(() => {
            button.replaceChildren(icon("copy"));
            button.setAttribute("aria-label", label);
        }, 1500);
    });
    return button;
}

/// Gives the user a file.
export function download(name, text) {
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    el("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/// Makes a text field as high as its text, up to a share of the window.
export function autosize(field, share = 0.4) {
    field.style.height = "auto";
    const most = Math.max(120, window.innerHeight * share);
    field.style.height = `${Math.min(field.scrollHeight + 2, most)}px`;
    field.style.overflowY = field.scrollHeight > most ? "auto" : "hidden";
}

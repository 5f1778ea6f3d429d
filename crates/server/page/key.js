// The API key: of this tab, unless the user wants it remembered.

const NAME = "minfer.key";

/// The key, or an empty text.
export function apiKey() {
    try {
        return sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME) ?? "";
    } catch {
        return kept;
    }
}

/// Whether it outlives the tab.
export function isRemembered() {
    try {
        return localStorage.getItem(NAME) !== null;
    } catch {
        return false;
    }
}

// Where storage is forbidden, a key lives as long as the page.
let kept = "";

/// Sets it; an empty one forgets it.
export function setApiKey(key, remember) {
    kept = key;
    try {
        sessionStorage.removeItem(NAME);
        localStorage.removeItem(NAME);
        if (key) {
            (remember ? localStorage : sessionStorage).setItem(NAME, key);
        }
    } catch {
        // See above.
    }
}

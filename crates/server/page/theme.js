// The theme, before the page is drawn: as the system has it, unless the user chose.
(() => {
    let theme = null;
    try {
        theme = localStorage.getItem("minfer.theme");
    } catch {
        // Storage may be forbidden: then it is as the system has it.
    }
    if (theme === "light" || theme === "dark") {
        document.documentElement.dataset.theme = theme;
    }
})();

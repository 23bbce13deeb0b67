// The console's own script: theme, keyboard, dialogs, favourites and charts. Pages work by htmx and plain links.
"use strict";
(() => {
  const root = document.documentElement;
  const stored = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
  const store = (key, value) => { try { localStorage.setItem(key, value); } catch { /* private window */ } };

  // -- theme: that of the system, until somebody switches ------------------------------------------
  const theme = stored("tidelog-theme");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const switchTheme = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    store("tidelog-theme", root.dataset.theme);
    charts.forEach((chart) => chart.draw());
  };

  // -- favourites: kept by this browser for each cluster -------------------------------------------
  const favouritesKey = () => `tidelog-favourites-${root.dataset.cluster}`;
  const favourites = () => { try { return new Set(JSON.parse(stored(favouritesKey()) || "[]")); } catch { return new Set(); } };
  const showFavourites = () => {
    const mine = favourites();
    document.querySelectorAll("[data-favourite]").forEach((star) => star.setAttribute("aria-pressed", mine.has(star.dataset.favourite)));
  };
  const toggleFavourite = (name) => {
    const mine = favourites();
    if (!mine.delete(name)) mine.add(name);
    store(favouritesKey(), JSON.stringify([...mine].slice(-500)));
    showFavourites();
  };

  // -- charts --------------------------------------------------------------------------------------
  const charts = [];
  const units = {
    bytes: (value) => { let unit = 0; while (value >= 1000 && unit < 4) { value /= 1000; unit += 1; } return `${+value.toPrecision(3)} ${["B", "KB", "MB", "GB", "TB"][unit]}/s`; },
    ms: (value) => `${+value.toPrecision(3)} ms`,
    rate: (value) => `${+value.toPrecision(3)}/s`,
    count: (value) => `${+value.toPrecision(6)}`,
  };
  const colourOf = (name) => {
    const probe = document.createElement("span");
    probe.className = name;
    document.body.append(probe);
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
  };
  class Chart {
    constructor(element, samples) {
      this.element = element;
      this.names = element.dataset.series.split(" ");
      this.samples = samples;
      this.draw();
      new ResizeObserver(() => this.plot.setSize({ width: element.clientWidth, height: 150 })).observe(element);
    }
    data() { return [this.samples.map((s) => s.time), ...this.names.map((name) => this.samples.map((s) => s[name] ?? null))]; }
    draw() {
      const shown = units[this.element.dataset.unit] || units.count;
      const axis = { stroke: () => colourOf("note"), grid: { stroke: () => colourOf("series-line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      this.plot?.destroy();
      this.plot = new uPlot({
        width: this.element.clientWidth, height: 150, legend: { show: false }, cursor: { y: false },
        scales: { x: { range: (_, low, high) => low == null ? [Date.now() / 1000 - 60, Date.now() / 1000] : [low === high ? low - 60 : low, high] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
        axes: [{ ...axis, size: 28, space: 70, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString("en-GB")) }, { ...axis, size: 72, values: (_, ticks) => ticks.map(shown) }],
        series: [{}, ...this.names.map((name, at) => ({ label: name, stroke: colourOf(`series-${at + 1}`), width: 1.5, points: { show: false } }))],
      }, this.data(), this.element);
      this.element.setAttribute("role", "img");
      this.describe(shown);
    }
    describe(shown) {
      const last = this.samples.at(-1) || {};
      this.element.setAttribute("aria-label", this.names.map((name) => `${name.replaceAll("_", " ")} now ${last[name] == null ? "unknown" : shown(last[name])}`).join(", "));
    }
    update() { this.plot.setData(this.data()); this.describe(units[this.element.dataset.unit] || units.count); }
  }
  const startCharts = () => document.querySelectorAll("[data-charts]").forEach((board) => {
    const samples = JSON.parse(board.dataset.charts);
    const mine = [...board.querySelectorAll("[data-series]")].map((element) => new Chart(element, samples));
    charts.push(...mine);
    board.addEventListener("htmx:sseBeforeMessage", (event) => {
      if (event.target !== board) return;
      event.preventDefault();
      samples.push(JSON.parse(event.detail.data));
      if (samples.length > 450) samples.shift();
      mine.forEach((chart) => chart.update());
    });
  });

  // -- live pages --------------------------------------------------------------------------------
  // A browser has six connections to a site, and each live page holds one: a page that nobody sees gives it
  // back. A tail of records keeps it, as it would miss records.
  class SeenSource {
    constructor(url) {
      this.url = url;
      this.listeners = [];
      this.isClosed = false;
      this.follow = () => { if (document.visibilityState === "hidden") this.rest(); else this.start(); };
      document.addEventListener("visibilitychange", this.follow);
      this.follow();
    }
    get readyState() { return this.source ? this.source.readyState : this.isClosed ? EventSource.CLOSED : EventSource.CONNECTING; }
    start() {
      if (this.source || this.isClosed) return;
      const source = new EventSource(this.url, { withCredentials: true });
      source.onopen = (event) => this.onopen?.(event);
      source.onerror = (event) => {
        if (source.readyState === EventSource.CLOSED) this.close(); // htmx makes another one
        this.onerror?.(event);
      };
      this.listeners.forEach(([name, listener]) => source.addEventListener(name, listener));
      this.source = source;
    }
    rest() { this.source?.close(); this.source = null; }
    addEventListener(name, listener) { this.listeners.push([name, listener]); this.source?.addEventListener(name, listener); }
    removeEventListener(name, listener) {
      this.listeners = this.listeners.filter((each) => each[0] !== name || each[1] !== listener);
      this.source?.removeEventListener(name, listener);
    }
    close() { this.isClosed = true; this.rest(); document.removeEventListener("visibilitychange", this.follow); }
  }
  const follow = (url) => new URL(url, location).pathname.endsWith("/messages/live") ? new EventSource(url) : new SeenSource(url);
  document.addEventListener("DOMContentLoaded", () => { if (window.htmx) htmx.createEventSource = follow; });

  // -- what a form has done: the page that follows says it ---------------------------------------
  document.addEventListener("done", (event) => { try { sessionStorage.setItem("tidelog-done", event.detail.message); } catch { /* private window */ } });
  const say = (message) => {
    const text = document.createElement("p");
    text.className = "good";
    text.textContent = message;
    document.getElementById("done")?.replaceChildren(text);
  };
  const showDone = () => {
    let message = null;
    try { message = sessionStorage.getItem("tidelog-done"); sessionStorage.removeItem("tidelog-done"); } catch { /* private window */ }
    if (message) say(message);
  };

  // -- keyboard and dialogs ------------------------------------------------------------------------
  const open = (id) => { const dialog = document.getElementById(id); if (dialog && !dialog.open) dialog.showModal(); };
  const copy = async (button, text) => {
    const label = button.textContent;
    // A browser gives the clipboard only to pages of https and of this machine.
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "The browser refuses the clipboard"; }
    setTimeout(() => { button.textContent = label; }, 2000);
  };
  const typing = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;
  const step = (by) => {
    const links = [...document.querySelectorAll(document.querySelector("#palette[open]") ? "#palette a" : "main tbody th a, main .record > summary")];
    const at = links.indexOf(document.activeElement);
    links[Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
  };
  let prefix = false;
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") { event.preventDefault(); open("palette"); return; }
    if (document.querySelector("#palette[open]")) {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); step(event.key === "ArrowDown" ? 1 : -1); }
      if (event.key === "Enter" && typing(event.target)) { event.preventDefault(); document.querySelector("#palette-results a")?.click(); }
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || document.querySelector("dialog[open]")) return;
    if (prefix) {
      prefix = false;
      document.querySelector(`[data-shortcut="${CSS.escape(event.key)}"]`)?.click();
      return;
    }
    const actions = {
      g: () => { prefix = true; setTimeout(() => { prefix = false; }, 1500); },
      "/": () => document.querySelector("[data-filter]")?.focus(),
      ":": () => open("palette"),
      "?": () => open("help"),
      d: switchTheme,
      j: () => step(1),
      k: () => step(-1),
      n: () => document.querySelector("[data-new]")?.click(),
    };
    if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
  });
  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-dialog], [data-close], [data-theme-switch], [data-favourite], [data-favourites], [data-copy]");
    if (!target) return;
    const data = target.dataset;
    if (data.dialog) open(data.dialog);
    if ("close" in data) target.closest("dialog")?.close();
    if ("themeSwitch" in data) switchTheme();
    if (data.favourite !== undefined) toggleFavourite(data.favourite);
    if (data.copy !== undefined) copy(target, data.copy);
    if (data.favourites !== undefined) {
      const only = [...favourites()].map((name) => `only=${encodeURIComponent(name)}`).join("&");
      if (only) location.assign(`${data.favourites}?${only}`); else say("There are no favourites yet: the star before a topic's name makes one.");
    }
  });
  // A download leaves the page as it is: the dialog has done its work.
  document.addEventListener("submit", (event) => { if ("download" in event.target.dataset) event.target.closest("dialog")?.close(); });
  // On a phone the menu and the tabs are wider than the screen: begin at the current page.
  const showCurrent = () => document.querySelectorAll(".side [aria-current], .tabs [aria-current]").forEach((link) => {
    const row = link.closest(".side, .tabs");
    row.scrollLeft += link.getBoundingClientRect().left - row.getBoundingClientRect().left - (row.clientWidth - link.offsetWidth) / 2;
  });
  document.addEventListener("DOMContentLoaded", () => { showDone(); showFavourites(); showCurrent(); if (window.uPlot) startCharts(); });
  document.addEventListener("htmx:afterSwap", showFavourites);
})();

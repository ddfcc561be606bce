// What all pages share: markup, loading, formats and small components.

import { h, render, Fragment } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState, useCallback } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import { get } from "./api.js";

export const html = htm.bind(h);
export { h, render, Fragment, useEffect, useMemo, useRef, useState, useCallback };

const app = document.getElementById("app");
let loading = 0;

/** Loads a path, and again every `every` milliseconds while the page is visible, and whenever `again` is called. */
export function useLoad(path, every = 0) {
  const [state, set] = useState({ data: null, error: null, of: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    const ending = new AbortController();
    const load = () =>
      get(path, ending.signal).then(
        (data) => set({ data, error: null, of: path }),
        (error) => error.name === "AbortError" || set((old) => ({ data: old.data, error, of: path })),
      );
    load();
    const timer = every && setInterval(() => document.hidden || load(), every);
    return () => { ending.abort(); clearInterval(timer); };
  }, [path, round]);
  // The page is busy until all that it shows was loaded once.
  const waits = path && state.of !== path ? 1 : 0;
  useLayoutEffect(() => {
    const count = (by) => { loading += by; app.setAttribute("aria-busy", loading > 0); };
    count(waits);
    return () => count(-waits);
  }, [waits]);
  return { ...state, again: useCallback(() => setRound((n) => n + 1), []) };
}

/** Loads again when an event came that fits. */
export function useNews(events, fits, again) {
  const last = events.findLast(fits);
  const seen = useRef(last);
  useEffect(() => {
    if (last === seen.current) return;
    seen.current = last;
    again();
  }, [last]);
}

/** What the shown page does with keys. The shell alone listens to keys, and hands on those that are not its own. */
export const pageKeys = { press: () => false };

/** Gives the page keys: `press` gets a key and whether it may answer now, and says whether it answered. */
export function useKeys(press) {
  // With each picture, as a key is for what is drawn.
  useLayoutEffect(() => {
    pageKeys.press = press;
    return () => { pageKeys.press = () => false; };
  });
}

// Formats.
const NUMBER = new Intl.NumberFormat("en");
export const number = (n) => (n === null || n === undefined ? "" : NUMBER.format(n));
export const money = (usd) => (usd === null || usd === undefined ? "–" : `$${usd < 0.1 && usd > 0 ? usd.toFixed(4) : usd.toFixed(2)}`);
export function duration(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms > 0 && ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)} s`;
  const [seconds, minutes] = [Math.round(ms / 1000), Math.round(ms / 60_000)];
  if (minutes < 60) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
export const short = (text, most = 300) => (text?.length > most ? `${text.slice(0, most)}… (${number(text.length - most)} more characters)` : text);
export const clock = (ms) => new Date(ms).toLocaleString("en-GB", { dateStyle: "short", timeStyle: "medium" });
/** A tool's id without its version. */
export const plain = (id) => id.replace(/@[\d.]+$/, "");
export const ago = (ms) => `${duration(Math.max(0, Date.now() - ms))} ago`;
export const tokens = (usage) => (usage ? (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0) : 0);

const GOOD = new Set(["ok", "ready", "done", "approved", "live"]);
const BUSY = new Set(["running", "pending", "starting", "waiting_input", "waiting", "queued"]);
const CALM = new Set(["stopped", "cancelled", "withdrawn", "expired", "skipped"]);
/** A state as a word with a mark: colour is never the only sign. */
export function State({ of }) {
  const kind = GOOD.has(of) ? "good" : BUSY.has(of) ? "busy" : CALM.has(of) ? "dim" : "bad";
  const mark = { good: "✓", busy: "…", dim: "–", bad: "!" }[kind];
  return html`<span class=${`state ${kind}`}><span aria-hidden="true">${mark}</span> <span class="word">${of.replaceAll("_", " ")}</span></span>`;
}

/** Names and values in one line, each pair together. */
export const Facts = ({ of }) => html`<dl class="facts">${of.filter(([, value]) => value !== undefined && value !== null && value !== "")
  .map(([name, value, kind]) => html`<div key=${name}><dt>${name}</dt> <dd class=${kind}>${value}</dd></div>`)}</dl>`;

/** A run or session, by its agent's name where it has one. */
export const Named = ({ name, id }) => html`${name && html`<strong>${name}</strong> `}<span class=${name ? "id" : ""}>${id}</span>`;

/** When a run or session ended, and how long it took until then or takes until now. */
export const Ended = ({ of }) => (of.live ? html`<${State} of="running" />` : html`<time title=${clock(of.ended_ms)}>${ago(of.ended_ms)}</time>`);
export const tookOf = ({ live, started_ms, ended_ms }) => (live ? Math.max(ended_ms, Date.now()) : ended_ms) - started_ms;

export const Problem = ({ error }) => (error ? html`<p class="problem" role="alert">${error.message}</p>` : null);
/** How many of all are shown, and a button for more of them. */
export function More({ shown, total, limit, most, more }) {
  if (total === undefined || shown >= total) return null;
  return html`<p class="more"><span class="note">${number(shown)} of ${number(total)} are shown.</span> ${limit < most && html`<button class="small" onClick=${() => more(Math.min(most, limit * 2))}>More</button>`}</p>`;
}

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export function Page({ title, about, actions, children }) {
  const head = useRef(null);
  useEffect(() => { document.title = `${title} – Toolwright`; head.current?.focus(); }, [title]);
  return html`<main id="main">
    <header class="page"><div><h1 tabindex="-1" ref=${head}>${title}</h1>${about && html`<p>${about}</p>`}</div>
      <div class="actions">${actions}</div></header>
    ${children}
  </main>`;
}

/** A table: columns are `[title, cell, kind]`, where the kind `n` aligns numbers. */
export function Table({ label, columns, rows, href, keyOf = (row) => row.id ?? row.name, none }) {
  if (!rows) return html`<${Empty}>Loading.<//>`;
  if (!rows.length) return html`<${Empty}>${none}<//>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
    <caption class="hidden">${label}</caption>
    <thead><tr>${columns.map(([title, , kind]) => html`<th scope="col" class=${kind}>${title}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${keyOf(row)}>${columns.map(([title, cell, kind = ""], index) => {
      const shown = cell(row);
      const isEmpty = shown === "" || shown === null || shown === undefined || shown === false;
      return html`<td class=${isEmpty ? `${kind} none` : kind} data-title=${title}>${index === 0 && href ? html`<a href=${href(row)}>${shown}</a>` : shown}</td>`;
    })}</tr>`)}</tbody>
  </table></div>`;
}

/** JSON, with a button that copies it. */
export function Json({ value, label = "JSON" }) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const [copied, setCopied] = useState(false);
  const copy = () => navigator.clipboard?.writeText(text).then(() => setCopied(true));
  return html`<div class="json"><button class="small" onClick=${copy}>${copied ? "Copied" : "Copy"}</button>
    <pre role="group" tabindex="0" aria-label=${label}>${text}</pre></div>`;
}

/** Two or more views of a page, of which one is shown. */
export function Tabs({ of, at, go, label }) {
  const move = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.stopPropagation();
    const next = of[(of.findIndex(([name]) => name === at) + by + of.length) % of.length][0];
    go(next);
    document.getElementById(`tab-${next}`)?.focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move}>${of.map(([name, title]) => html`<button key=${name} id=${`tab-${name}`} role="tab"
    aria-selected=${name === at} tabindex=${name === at ? 0 : -1} onClick=${() => go(name)}>${title}</button>`)}</div>`;
}

/** Lines of a difference: those that begin with + and - are marked. */
export function Diff({ text, label = "Difference" }) {
  const kind = (line) => (/^\+(?!\+\+ )/.test(line) ? "added" : /^-(?!-- )/.test(line) ? "removed" : line.startsWith("@@") ? "dim" : "");
  return html`<pre class="diff" role="group" tabindex="0" aria-label=${label}>${text.replace(/\n$/, "").split("\n").map((line) => html`<span class=${kind(line)}>${line}\n</span>`)}</pre>`;
}

/** What is to be done, and how far it is. */
export function Todo({ items }) {
  if (!items?.length) return null;
  const mark = { done: "✓", in_progress: "…", pending: "○" };
  return html`<section><h2>To do</h2><ul class="todo">${items.map((item) => html`<li key=${item.id} class=${item.status}><span aria-hidden="true">${mark[item.status]}</span>
    <span>${item.text}</span> <span class="dim">${item.status.replace("_", " ")}</span></li>`)}</ul></section>`;
}

/** Rows of one height, of which only those in view are drawn. */
export function LongList({ rows, height = 28, label, follow, active, onKeyDown, children: draw }) {
  const box = useRef(null);
  const [view, setView] = useState([0, 40]);
  const look = () => {
    const at = box.current;
    if (at) setView([Math.floor(at.scrollTop / height), Math.ceil(at.clientHeight / height) + 1]);
  };
  useEffect(() => { look(); addEventListener("resize", look); return () => removeEventListener("resize", look); }, [rows.length]);
  // The row of this number is kept in view.
  useEffect(() => {
    const at = box.current;
    if (follow === undefined || !at) return;
    at.scrollTop = Math.min(Math.max(at.scrollTop, (follow + 1) * height - at.clientHeight), follow * height);
  }, [follow]);
  const first = Math.max(0, Math.min(view[0] - 10, rows.length - 1));
  const shown = rows.slice(first, view[0] + view[1] + 10);
  return html`<div class="long" ref=${box} onScroll=${look} onKeyDown=${onKeyDown} tabindex="0" role="tree" aria-label=${label} aria-activedescendant=${active}>
    <div style=${{ height: `${rows.length * height}px` }}><div style=${{ transform: `translateY(${first * height}px)` }}>
      ${shown.map((row, index) => draw(row, first + index))}
    </div></div></div>`;
}

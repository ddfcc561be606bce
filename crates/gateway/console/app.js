// The shell: signs in, draws the navigation, and shows the page that the address names.

import { follow, signIn, whenSignedOut, get, learnMe, me } from "./api.js";
import { html, render, useEffect, useState, pageKeys, Empty, Page, Problem, State } from "./ui.js";
import { Overview } from "./pages/overview.js";

/** Name, title and key; the component of a page has its title as its name. */
const PAGES = [
  ["overview", "Overview", "o"],
  ["approvals", "Approvals", "a"],
  ["runs", "Runs", "r"],
  ["jobs", "Jobs", "j"],
  ["chat", "Chat", "h"],
  ["agents", "Agents", "g"],
  ["triggers", "Triggers", "i"],
  ["tools", "Tools", "t"],
  ["policy", "Policy", "p"],
  ["pins", "Pins", "n"],
  ["costs", "Costs", "c"],
];
/** The components that are there. The first view needs one only; the others come after it. */
const ready = new Map([["overview", Overview]]);
const fetched = ([name, title]) => ready.get(name) ?? import(`./pages/${name}.js`).then((module) => ready.set(name, module[title]));

/** A page, once its code is there. */
function Shown({ of, ...rest }) {
  const [, setRound] = useState(0);
  const [error, setError] = useState(null);
  useEffect(() => {
    if (ready.has(of[0])) return;
    fetched(of).then(() => { setError(null); setRound((n) => n + 1); }, setError);
  }, [of]);
  const Shows = ready.get(of[0]);
  if (Shows) return html`<${Shows} ...${rest} />`;
  return html`<${Page} title=${error ? of[1] : ""}>${error ? html`<${Problem} error=${error} />` : html`<${Empty}>Loading.<//>`}<//>`;
}
/** Pages with which a group begins in the navigation. */
const FIRST = new Set(["chat", "tools", "costs"]);
/** Events that are kept for the pages. */
const KEPT = 200;

const place = () => {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/");
  return { page: page || "overview", id: rest.map(decodeURIComponent).join("/"), op: new URLSearchParams(query).get("op") };
};

/** The address holds its token only now: whoever goes to a page takes it out. */
const signingIn = signIn();
signingIn.catch(() => {});

function App() {
  const [signedIn, setSignedIn] = useState(null);
  const [at, setAt] = useState(place());
  const [link, setLink] = useState("lost");
  const [events, setEvents] = useState([]);
  const [waiting, setWaiting] = useState(0);
  const [help, setHelp] = useState(false);
  const [, setLearned] = useState(false);

  useEffect(() => {
    whenSignedOut(() => setSignedIn(false));
    // A page whose server was restarted is told so at its first request. What it may do is learned while it loads.
    const known = async () => {
      const isIn = await signingIn;
      setSignedIn(isIn);
      if (isIn) await learnMe();
      setLearned(true);
    };
    known().catch((error) => setSignedIn(error.status === 401 ? false : error));
    const moved = () => setAt(place());
    addEventListener("hashchange", moved);
    moved();
    return () => removeEventListener("hashchange", moved);
  }, []);

  useEffect(() => {
    if (signedIn !== true) return undefined;
    let fresh = [];
    let timer = null;
    // Events of one moment are drawn together.
    const show = () => {
      timer = null;
      const news = fresh;
      fresh = [];
      setEvents((old) => [...old, ...news].slice(-KEPT));
    };
    const count = () => document.hidden || get("/api/approvals?limit=1").then(({ total }) => setWaiting(total), () => {});
    const end = follow((event) => {
      fresh.push(event);
      timer ??= setTimeout(show, 100);
      if (event.event.startsWith("approval")) count();
    }, setLink);
    count();
    const rest = setTimeout(() => PAGES.forEach((page) => Promise.resolve(fetched(page)).catch(() => {})), 500);
    const counting = setInterval(count, 4000);
    return () => { end(); clearTimeout(timer); clearTimeout(rest); clearInterval(counting); };
  }, [signedIn]);

  useEffect(() => {
    let afterG = false;
    // The key that opened a page or answered last, until it is up: nothing is answered before that.
    let held = null;
    const key = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.key === "Shift" || /INPUT|TEXTAREA|SELECT/.test(event.target.tagName)) return;
      if (document.querySelector("[role=dialog]")) {
        afterG = false;
        if (event.key === "Escape" || (event.key === "?" && !event.repeat)) setHelp(false);
      } else if (afterG) {
        if (event.repeat) return;
        afterG = false;
        held = event.code;
        const page = PAGES.find(([, , letter]) => letter === event.key);
        if (page) location.hash = `#/${page[0]}`;
      } else if (event.key === "g") afterG = !event.repeat;
      else if (event.key === "?") setHelp(!event.repeat);
      else if (event.key === "/") {
        const search = document.querySelector("input[type=search]");
        if (search) { event.preventDefault(); search.focus(); }
      } else if (pageKeys.press(event.key, !event.repeat && held === null)) held = event.code;
    };
    const up = (event) => { if (event.code === held) held = null; };
    // A window that is left is not told that the key is up.
    const left = () => { held = null; };
    const listeners = Object.entries({ keydown: key, keyup: up, blur: left });
    listeners.forEach(([name, listener]) => addEventListener(name, listener));
    return () => listeners.forEach(([name, listener]) => removeEventListener(name, listener));
  }, []);

  if (signedIn === null) return html`<p class="empty">Signing in.</p>`;
  if (signedIn !== true) return html`<${SignedOut} error=${signedIn} />`;
  const page = PAGES.find(([name]) => name === at.page) ?? PAGES[0];
  // A narrow window has a row of pages that is wider than it.
  const reveal = (row) => { const on = row?.querySelector("[aria-current]"); if (on) row.scrollLeft = on.offsetLeft - (row.clientWidth - on.offsetWidth) / 2; };
  return html`<a class="skip" href="#main">Skip to the page</a>
    <nav aria-label="Pages"><a class="brand" href="#/overview"><img src="/console/icon.svg" alt="" width="24" height="24" />Toolwright</a>
      <ul ref=${reveal}>${PAGES.map(([name, title]) => html`<li class=${FIRST.has(name) ? "first" : ""}><a href=${`#/${name}`} aria-current=${name === page[0] ? "page" : undefined}>${title}
        ${name === "approvals" && waiting > 0 && html` <span class="count">${waiting}<span class="hidden"> waiting</span></span>`}</a></li>`)}</ul>
      <p class="foot" role="status"><${State} of=${link} />${me.principal && !me.changes && html`<span class="dim">read only</span>`} <button class="small" onClick=${() => setHelp(true)}>Keys</button></p></nav>
    <${Shown} key=${page[0]} of=${page} id=${at.id} op=${at.op} events=${events} waiting=${waiting} />
    ${help && html`<${Keys} close=${() => setHelp(false)} />`}`;
}

function SignedOut({ error }) {
  return html`<main class="signed-out"><h1>Signed out</h1>
    ${error instanceof Error && html`<${Problem} error=${error} />`}
    <p>The console opens with an address that holds a token, once. The server prints one when it starts. This makes another:</p>
    <pre>toolwright console</pre></main>`;
}

const KEYS = [
  ["g, then " + PAGES.map(([, , letter]) => letter).join(" "), "Opens a page"], ["/", "Searches"], ["j, k", "Next, previous (approvals)"],
  ["a, t, s, w, d", "Approve once, these arguments, this session, always, deny (approvals, chat)"], ["↑, ↓, ←, →", "Choose, fold and unfold operations (runs)"], ["←, →", "Step back, on (playback)"], ["?", "Shows or hides this list"], ["Esc", "Closes"],
];
function Keys({ close }) {
  return html`<div class="dialog" role="dialog" aria-modal="true" aria-label="Keys"><h2>Keys</h2>
    <dl>${KEYS.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
    <button ref=${(at) => at?.focus()} onClick=${close}>Close</button></div>`;
}

const app = document.getElementById("app");
app.textContent = "";
render(html`<${App} />`, app);

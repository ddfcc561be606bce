// Runs and sessions, and each as the tree of its operations, which grows while it runs.

import {
  html, useLoad, useNews, useKeys, useState, useEffect, useMemo, useRef, Page, Problem, Table, LongList, State, Empty, Facts, More, Named, Ended, tookOf, Tabs, Todo, Json, number, money, duration, clock, tokens, short, plain,
} from "../ui.js";
import { get } from "../api.js";

export function Runs({ id, op, events }) {
  return id ? html`<${Tree} key=${`${id} ${op}`} id=${id} op=${op} events=${events} />` : html`<${List} events=${events} />`;
}

function List({ events }) {
  const [limit, setLimit] = useState(50);
  const { data, error, again } = useLoad(`/api/traces?limit=${limit}`, 5000);
  useNews(events, (event) => event.event.endsWith("_finished"), again);
  const [only, setOnly] = useState("");
  const agents = useLoad(`/api/agents?limit=${limit}`, 15_000);
  const names = new Map(agents.data?.trees.map((tree) => [tree.run, tree.agents[0]?.name]));
  const rows = data?.traces.filter((row) => (only === "failed" ? row.failures > 0 : only === "runs" ? row.run : true));
  return html`<${Page} title="Runs" about="Runs of agents and sessions of clients. The last to end comes first.">
    <${Problem} error=${error} />
    <div class="filters"><label>Show <select value=${only} onChange=${(event) => setOnly(event.target.value)}><option value="">all</option>
      <option value="failed">with failures</option><option value="runs">runs of agents</option></select></label></div>
    <${Table} label="Runs and sessions" rows=${rows} none="Nothing was called yet." keyOf=${(row) => row.run ?? row.session}
      href=${(row) => `#/runs/${encodeURIComponent(row.run ?? row.session)}`} columns=${[
        ["run or session", (row) => html`<${Named} name=${names.get(row.run)} id=${row.run ?? row.session} />`], ["of", (row) => row.principal], ["ended", (row) => html`<${Ended} of=${row} />`],
        ["took", (row) => duration(tookOf(row)), "n"], ["turns", (row) => row.turns || "", "n"],
        ["calls", (row) => number(row.tool_calls), "n"], ["requests", (row) => number(row.model_calls), "n"],
        ["failed", (row) => (row.failures ? html`<span class="bad">${number(row.failures)}</span>` : "0"), "n"],
        ["tokens", (row) => number(tokens(row.usage)), "n"], ["cost", (row) => money(row.cost_usd), "n"],
      ]} />
    <${More} shown=${data?.traces.length} total=${data?.total} limit=${limit} most=${1000} more=${setLimit} />
  <//>`;
}

const failed = (op) => !["ok", "done", "running"].includes(op.status) && op.kind !== "guard";

/** What hides a subtree: whether something in it failed or fits the filter is looked up once for the whole tree. */
function look(trace, filter) {
  const marks = new Map();
  const visit = (op) => {
    let fails = failed(op);
    let fits = !filter || `${op.name} ${op.status} ${op.kind}`.toLowerCase().includes(filter);
    for (const child of op.children) {
      const below = visit(child);
      fails ||= below.fails;
      fits ||= below.fits;
    }
    const mark = { fails, fits };
    marks.set(op, mark);
    return mark;
  };
  trace.turns.forEach((turn) => turn.ops.forEach(visit));
  return marks;
}

/** The rows of the tree: all that are not folded or filtered away. What failed is always shown. */
function flatten(trace, folded, filter) {
  const marks = look(trace, filter);
  const rows = [];
  const visit = (op, depth) => {
    const { fits, fails } = marks.get(op);
    if (!fits && !fails) return;
    rows.push({ op, depth });
    const isFolded = folded.has(op.op);
    for (const child of op.children) if (!isFolded || marks.get(child).fails) visit(child, depth + 1);
  };
  for (const turn of trace.turns) {
    if (turn.turn > 0) rows.push({ turn: turn.turn, depth: 0 });
    turn.ops.forEach((op) => visit(op, turn.turn > 0 ? 1 : 0));
  }
  return rows;
}

/** All operations in the order in which they began. */
function steps(trace) {
  const all = [];
  const visit = (op, depth) => { all.push({ op, depth }); op.children.forEach((child) => visit(child, depth + 1)); };
  trace.turns.forEach((turn) => turn.ops.forEach((op) => visit(op, 0)));
  return all.sort((a, b) => a.op.started_ms - b.op.started_ms);
}

/** Operations that an update reads of a run and of each run below it. */
const UPDATE = 100;
/** Milliseconds from an event to the update that it causes. */
const SOON = 250;

/** A trace that is brought up to date by its last operations, so that a long one is read once. */
class Growing {
  constructor(trace) {
    this.trace = trace;
    this.ops = new Map();
    this.strays = new Map();
    this.ended = 0;
    trace.turns.forEach((turn) => turn.ops.forEach((op) => this.note(op, turn.ops)));
    this.left = Math.max(0, this.counted() - this.ended);
  }

  /** The operations that have ended, by the sums of the ledger. */
  counted() {
    const { tool_calls, model_calls, jobs } = this.trace.totals;
    return tool_calls + model_calls + jobs;
  }

  /** An operation that is in the tree, and all in it. `tops` is the list in which it stands without its parent. */
  note(op, tops) {
    this.ops.set(op.op, op);
    if (op.status !== "running" && op.kind !== "guard") this.ended += 1;
    if (tops && op.parent && !this.ops.has(op.parent)) this.strays.set(op.parent, [...(this.strays.get(op.parent) ?? []), [op, tops]]);
    op.children.forEach((child) => this.note(child));
  }

  /** Puts the last operations in. Returns whether the tree is whole then: if not, some came and went unseen. */
  update(part) {
    const seen = new Set();
    const visit = (op, turn) => {
      const { children, ...facts } = op;
      seen.add(op.op);
      const known = this.ops.get(op.op);
      if (known) {
        if (known.status === "running" && op.status !== "running" && op.kind !== "guard") this.ended += 1;
        Object.assign(known, facts, { agent: facts.agent ?? known.agent });
      } else {
        this.add({ ...facts, children: [] }, turn);
      }
      children.forEach((child) => visit(child, turn));
    };
    part.turns.forEach((turn) => turn.ops.forEach((op) => visit(op, turn.turn)));
    Object.assign(this.trace, { totals: part.totals, latency_ms: part.latency_ms, live: part.live });
    const lost = [...this.ops.values()].some((op) => op.status === "running" && !seen.has(op.op));
    return !lost && this.ended + this.left >= this.counted();
  }

  add(op, turn) {
    const parent = op.parent && this.ops.get(op.parent);
    const put = (list) => {
      list.push(op);
      if (list.length > 1 && list[list.length - 2].started_ms > op.started_ms) list.sort((a, b) => a.started_ms - b.started_ms);
    };
    if (parent) {
      put(parent.children);
      this.note(op);
    } else {
      const { turns } = this.trace;
      let at = turns.find((one) => one.turn === turn);
      if (!at) {
        at = { turn, ops: [] };
        turns.push(at);
        turns.sort((a, b) => a.turn - b.turn);
      }
      put(at.ops);
      this.note(op, at.ops);
    }
    // What was there before the operation that it is part of.
    for (const [child, tops] of this.strays.get(op.op) ?? []) {
      tops.splice(tops.indexOf(child), 1);
      op.children.push(child);
    }
    this.strays.delete(op.op);
  }
}

/** The trace of a run or session, which grows with the events. */
function useTrace(id, events) {
  const path = `/api/traces/${encodeURIComponent(id)}`;
  const whole = useLoad(path);
  const [state, set] = useState({ trace: null, error: null });
  const growing = useRef(null);
  const timer = useRef(null);
  const seen = useRef(events[events.length - 1]);
  useEffect(() => {
    if (!whole.data) return;
    growing.current = new Growing(whole.data);
    set({ trace: whole.data, error: null });
  }, [whole.data]);
  const update = () => get(`${path}?last=${UPDATE}`).then((part) => {
    const grown = growing.current;
    if (grown && grown.update(part)) set({ trace: { ...grown.trace }, error: null });
    else whole.again();
  }, (error) => set((old) => ({ ...old, error }))).finally(() => { timer.current = null; });
  useEffect(() => {
    const news = events.slice(events.lastIndexOf(seen.current) + 1);
    seen.current = events[events.length - 1] ?? seen.current;
    const grown = growing.current;
    if (!grown || timer.current || document.hidden) return;
    const { run, session } = grown.trace;
    const isOurs = ({ session: of, op }) => of === session || (op && ((run && op.run === run) || grown.ops.has(op.parent) || [op.within?.parent, op.within?.root].includes(session)));
    const isOpen = [...grown.ops.values()].some((op) => op.status === "running");
    if (news.some((event) => isOpen || isOurs(event))) timer.current = setTimeout(update, SOON);
  }, [events]);
  useEffect(() => () => clearTimeout(timer.current), []);
  return { ...state, error: state.error ?? whole.error, again: whole.again };
}

const VIEWS = [["tree", "Operations"], ["talk", "Conversation"], ["play", "Playback"]];

function Tree({ id, op, events }) {
  const { trace, error, again } = useTrace(id, events);
  const saved = useLoad(trace?.run ? `/api/runs/${encodeURIComponent(trace.run)}` : null);
  const session = useLoad(trace && !trace.run ? `/api/sessions/${encodeURIComponent(trace.session)}` : null);
  const [view, setView] = useState("tree");
  // Each turn saves the conversation anew.
  const turns = trace?.totals.model_calls;
  useEffect(() => { if (turns) saved.again(); }, [turns]);
  if (!trace) return html`<${Page} title=${id}><${Problem} error=${error} />${!error && html`<${Empty}>Loading.<//>`}<//>`;
  const { totals } = trace;
  const todo = saved.data?.todo ?? session.data?.todo;
  return html`<${Page} title=${trace.run ?? trace.session} about=${`Began ${clock(trace.started_ms)}, ${trace.live ? "and goes on" : `took ${duration(trace.latency_ms)}`}.`}
      actions=${html`<a href="#/runs">All runs</a> <button onClick=${again}>Read again</button>`}>
    <${Facts} of=${[["calls", number(totals.tool_calls)], ["requests", number(totals.model_calls)], ["failed", number(totals.failures), totals.failures ? "bad" : ""],
      ["tokens", number(tokens(totals.usage))], ["cost", money(totals.cost_usd)], ["agent", typeof saved.data?.agent === "string" ? saved.data.agent : ""], ["model", saved.data?.model], ...limits(saved.data)]} />
    ${trace.left_out > 0 && html`<p class="note">${number(trace.left_out)} earlier operations are not shown.</p>`}
    ${trace.live && html`<${Waiting} trace=${trace} />`}
    <${Todo} items=${todo} />
    <${Tabs} label="Views of the run" of=${VIEWS.filter(([name]) => name !== "talk" || saved.data)} at=${view} go=${setView} />
    ${view === "tree" ? html`<${Operations} id=${id} first=${op} trace=${trace} />` : view === "talk" && saved.data ? html`<${Conversation} messages=${saved.data.messages} />` : html`<${Playback} id=${id} trace=${trace} />`}
  <//>`;
}

/** The calls of a run, and of the agents below it, that wait for a person. They are no operations yet. */
function Waiting({ trace }) {
  const { data } = useLoad("/api/approvals?limit=100", 2000);
  if (!data?.questions.length) return null;
  const ours = new Set([trace.session, trace.run]);
  const visit = (op) => { if (op.agent) ours.add(op.agent.run); op.children.forEach(visit); };
  trace.turns.forEach((turn) => turn.ops.forEach(visit));
  const waiting = data.questions.filter((one) => ours.has(one.session));
  return waiting.map((one) => html`<p key=${one.id}><${State} of="waiting" /> <code>${plain(one.tool ?? one.id)}</code> waits for a person: <a href="#/approvals">approvals</a></p>`);
}

/** What a run may use at most. */
const limits = (of) => Object.entries(of?.limits ?? {}).filter(([, value]) => ["number", "string"].includes(typeof value))
  .map(([name, value]) => [`${name} at most`, typeof value === "number" ? number(value) : value]);

function Operations({ id, first, trace }) {
  const [folded, setFolded] = useState(new Set());
  const [filter, setFilter] = useState("");
  const [chosen, setChosen] = useState(first);
  // What runs takes longer as one looks.
  const [, draw] = useState(0);
  useEffect(() => {
    if (!trace.live) return undefined;
    const timer = setInterval(() => document.hidden || draw((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, [trace.live]);
  const rows = useMemo(() => flatten(trace, folded, filter.trim().toLowerCase()), [trace, folded, filter]);
  const fold = (op) => setFolded((old) => {
    const next = new Set(old);
    if (!next.delete(op)) next.add(op);
    return next;
  });
  const place = chosen ? rows.findIndex((row) => row.op?.op === chosen) : -1;
  const shown = rows[place]?.op;
  // As trees of files: up and down choose, left and right fold and unfold.
  const move = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const isFolded = shown && folded.has(shown.op);
    if (step) {
      let next = place < 0 && step < 0 ? rows.length - 1 : place + step;
      while (rows[next] && !rows[next].op) next += step;
      if (rows[next]) setChosen(rows[next].op.op);
    } else if (shown?.children.length && (event.key === "ArrowLeft" ? !isFolded : event.key === "ArrowRight" && isFolded)) fold(shown.op);
    else return;
    event.preventDefault();
  };
  return html`<div class="filters"><label>Filter <input type="search" value=${filter} onInput=${(event) => setFilter(event.target.value)} /></label>
      <button onClick=${() => setFolded(new Set(rows.filter((row) => row.op?.children.length).map((row) => row.op.op)))}>Fold all</button>
      <button onClick=${() => setFolded(new Set())}>Unfold all</button></div>
    <div class="split"><${LongList} rows=${rows} label="Operations" follow=${place < 0 ? undefined : place} active=${shown && `op-${shown.op}`} onKeyDown=${move}>${({ op, turn, depth }, index) => turn
      ? html`<div class="row turn" key=${`turn-${turn}-${index}`} role="treeitem" aria-level="1">Turn ${turn}</div>`
      : html`<${Row} key=${op.op} op=${op} depth=${depth} trace=${trace} folded=${folded.has(op.op)} chosen=${chosen === op.op}
          fold=${() => fold(op.op)} choose=${() => setChosen(op.op)} />`}<//>
      ${shown && html`<${Details} key=${`${shown.op} ${shown.status}`} id=${id} op=${shown} />`}</div>`;
}

/** The messages of a saved run, with its calls and their results. */
function Conversation({ messages }) {
  const text = (content) => content.map((block) => block.text ?? `[${block.type}]`).join("\n");
  return html`<div class="said whole">${messages.map((message, index) => html`<div key=${index}>
    ${message.role === "user" && html`<div class="turn-user">${text(message.content)}</div>`}
    ${message.role === "assistant" && html`${message.text && html`<div class="turn-agent">${message.text}</div>`}
      ${message.calls.map((call) => html`<details class="turn-call"><summary>calls <code>${call.name}</code> <span class="dim">${short(call.arguments, 90)}</span></summary><${Json} value=${call.arguments} label="Arguments" /></details>`)}`}
    ${message.role === "tool" && message.results.map((result) => html`<details class="turn-call"><summary><${State} of=${result.is_error ? "failed" : "ok"} /> <code>${result.name}</code> <span class="dim">${short(text(result.content), 90)}</span></summary>
      <${Json} value=${text(result.content)} label="Result" /></details>`)}</div>`)}</div>`;
}

/** The run again, an operation at a time. */
function Playback({ id, trace }) {
  const all = useMemo(() => steps(trace), [trace]);
  const [at, setAt] = useState(0);
  const [plays, setPlays] = useState(false);
  const most = all.length - 1;
  useEffect(() => {
    if (!plays) return undefined;
    if (at >= most) { setPlays(false); return undefined; }
    const timer = setTimeout(() => setAt(at + 1), 900);
    return () => clearTimeout(timer);
  }, [plays, at]);
  useKeys((key) => {
    if (key === "ArrowRight") setAt((old) => Math.min(old + 1, most));
    if (key === "ArrowLeft") setAt((old) => Math.max(old - 1, 0));
    return false;
  });
  if (!all.length) return html`<${Empty}>Nothing ran.<//>`;
  const now = all[at].op;
  return html`<div class="filters play"><button onClick=${() => setAt(Math.max(0, at - 1))} disabled=${at === 0}>Back</button>
      <button class="main" onClick=${() => { if (at >= most) setAt(0); setPlays(!plays); }}>${plays ? "Pause" : "Play"}</button>
      <button onClick=${() => setAt(Math.min(most, at + 1))} disabled=${at >= most}>On</button>
      <label>Step ${number(at + 1)} of ${number(all.length)}, ${duration(now.started_ms - trace.started_ms)} after the start
        <input type="range" min="0" max=${most} value=${at} onInput=${(event) => setAt(Number(event.target.value))} /></label></div>
    <div class="split"><${LongList} rows=${all.slice(0, at + 1)} label="Operations until now" follow=${at}>${({ op, depth }) => html`<${Row} key=${op.op} op=${op} depth=${depth} trace=${trace} chosen=${op === now} choose=${() => setAt(all.findIndex((one) => one.op === op))} />`}<//>
      <${Details} key=${now.op} id=${id} op=${now} /></div>`;
}

function Row({ op, depth, trace, folded, chosen, fold, choose }) {
  const until = (since, took) => Math.max(took, Date.now() - since);
  const took = op.status === "running" ? until(op.started_ms, op.latency_ms) : op.latency_ms;
  const span = Math.max(1, trace.live ? until(trace.started_ms, trace.latency_ms) : trace.latency_ms);
  const left = Math.min(99, (100 * (op.started_ms - trace.started_ms)) / span);
  const width = Math.max(0.5, Math.min(100 - left, (100 * took) / span));
  return html`<div id=${`op-${op.op}`} class=${`row ${chosen ? "chosen" : ""}`} role="treeitem" aria-level=${depth + 1} aria-selected=${chosen}
      aria-expanded=${fold && op.children.length ? !folded : undefined}>
    <span class="name" style=${{ paddingLeft: `${Math.min(depth, 12) * 16}px` }}>
      ${fold && op.children.length ? html`<button class="fold" aria-label=${folded ? "Unfold" : "Fold"} onClick=${fold}>${folded ? "▸" : "▾"}</button>` : html`<span class="fold" />`}
      <button class="link" onClick=${choose}>${plain(op.name)}</button>${op.agent && html` <span class="dim">agent</span>`}</span>
    <${State} of=${op.status} /><span class="n">${duration(took)}</span>
    <svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class=${failed(op) ? "failed" : op.kind} x=${left} y="1" width=${width} height="6" rx="1" /></svg></div>`;
}

/** What was done to a call as the model wrote it. */
const repairs = (provenance) => Object.entries(provenance).filter(([, value]) => value && (typeof value !== "object" || Object.keys(value).length))
  .map(([name, value]) => (value === true ? name.replaceAll("_", " ") : `${name.replaceAll("_", " ")}: ${typeof value === "string" ? value : JSON.stringify(value)}`)).join("; ");

/** Text that may be JSON, laid out. */
function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function Details({ id, op }) {
  const { data } = useLoad(`/api/traces/${encodeURIComponent(id)}/operations/${op.op}`);
  const whole = data?.id === op.op ? data : null;
  const facts = [
    ["kind", op.kind], ["status", html`<${State} of=${op.status} />`], ["started", clock(op.started_ms)], ["took", duration(op.latency_ms)],
    ["waited", op.wait_ms >= 1 ? duration(op.wait_ms) : ""], ["people took", op.person_ms ? duration(op.person_ms) : ""], ["decided by", op.decided_by],
    ["a person said", op.approval], ["attempts", op.attempts > 1 ? op.attempts : ""], ["out of the cache", op.cached ? "yes" : ""],
    ["characters in, out", `${number(op.characters_in)}, ${number(op.characters_out)}`], ["tokens", op.usage && number(tokens(op.usage))],
    ["tools shown", whole?.tools && number(whole.tools.shown)], ["cost", op.cost_usd === null ? "" : money(op.cost_usd)],
    ["agent's run", op.agent && html`<a href=${`#/runs/${encodeURIComponent(op.agent.run)}`}>${op.agent.run}</a>`],
    ["why", op.note], ["lost on the way", op.lost?.join(", ")], ["repaired", op.provenance && repairs(op.provenance)],
    ["call", op.call && html`<code>${op.call}</code>`], ["operation", html`<code>${op.op}</code>`],
  ];
  return html`<aside aria-label="The chosen operation" aria-live="polite"><h2>${op.name}</h2>
    ${whole?.arguments && html`<h3>Arguments</h3><${Json} value=${pretty(whole.arguments)} label="Arguments" />`}
    ${whole?.result && html`<h3>Result</h3><${Json} value=${pretty(whole.result)} label="Result" />`}
    ${whole && op.kind === "tool" && !whole.arguments && op.characters_in > 2 && html`<p class="note">Its arguments are too long to be kept.</p>`}
    <dl class="facts tall">${facts.filter(([, value]) => value || value === 0)
    .map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl></aside>`;
}

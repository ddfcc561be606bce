// Runs and sessions, and each as the tree of its operations, which grows while it runs.

import { html, useLoad, useState, useEffect, useMemo, Page, Problem, Table, LongList, State, Empty, number, money, duration, clock, ago, tokens } from "../ui.js";

export function Runs({ id, events }) {
  return id ? html`<${Tree} key=${id} id=${id} events=${events} />` : html`<${List} events=${events} />`;
}

function List({ events }) {
  const [limit, setLimit] = useState(50);
  const { data, error, again } = useLoad(`/api/traces?limit=${limit}`, 5000);
  useEffect(again, [events.length && events[events.length - 1].event.endsWith("_finished") && events[events.length - 1]]);
  const [only, setOnly] = useState("");
  const rows = data?.traces.filter((row) => (only === "failed" ? row.failures > 0 : only === "runs" ? row.run : true));
  return html`<${Page} title="Runs" about="Runs of agents, and sessions of clients. The last to end stands first.">
    <${Problem} error=${error} />
    <div class="filters"><label>Show <select value=${only} onChange=${(event) => setOnly(event.target.value)}><option value="">all</option>
      <option value="failed">with failures</option><option value="runs">runs of agents</option></select></label></div>
    <${Table} label="Runs and sessions" rows=${rows} none="Nothing was called yet." keyOf=${(row) => row.run ?? row.session}
      href=${(row) => `#/runs/${encodeURIComponent(row.run ?? row.session)}`} columns=${[
        ["run or session", (row) => row.run ?? row.session], ["of", (row) => row.principal], ["ended", (row) => html`<time title=${clock(row.ended_ms)}>${ago(row.ended_ms)}</time>`],
        ["took", (row) => duration(row.ended_ms - row.started_ms), "n"], ["turns", (row) => row.turns || "", "n"],
        ["calls", (row) => number(row.tool_calls), "n"], ["requests", (row) => number(row.model_calls), "n"],
        ["failed", (row) => (row.failures ? html`<span class="bad">${number(row.failures)}</span>` : "0"), "n"],
        ["tokens", (row) => number(tokens(row.usage)), "n"], ["cost", (row) => money(row.cost_usd), "n"],
      ]} />
    ${data?.more && html`<p><button onClick=${() => setLimit(Math.min(1000, limit * 2))} disabled=${limit >= 1000}>More</button> ${limit >= 1000 && "The last 1,000 are shown."}</p>`}
  <//>`;
}

const failed = (op) => !["ok", "done", "running"].includes(op.status) && op.kind !== "guard";

/** The rows of the tree: all that are not folded away. What failed is always shown. */
function flatten(trace, folded, filter) {
  const rows = [];
  const wanted = (op) => (!filter || `${op.name} ${op.status} ${op.kind}`.toLowerCase().includes(filter)) || op.children.some(wanted);
  const visit = (op, depth) => {
    if (!wanted(op)) return;
    rows.push({ op, depth });
    const inside = folded.has(op.op) ? op.children.filter(hasFailed) : op.children;
    inside.forEach((child) => visit(child, depth + 1));
  };
  for (const turn of trace.turns) {
    if (turn.turn > 0) rows.push({ turn: turn.turn, depth: 0 });
    turn.ops.forEach((op) => visit(op, turn.turn > 0 ? 1 : 0));
  }
  return rows;
}
const hasFailed = (op) => failed(op) || op.children.some(hasFailed);

function Tree({ id, events }) {
  const { data: trace, error, again } = useLoad(`/api/traces/${encodeURIComponent(id)}`);
  const [folded, setFolded] = useState(new Set());
  const [filter, setFilter] = useState("");
  const [chosen, setChosen] = useState(null);
  const last = events[events.length - 1];
  // The ledger has what ended; it is read again soon after the last event of this run.
  useEffect(() => {
    if (!last || !(last.session === trace?.session || last.run === trace?.run)) return undefined;
    const timer = setTimeout(again, 300);
    return () => clearTimeout(timer);
  }, [last]);
  const rows = useMemo(() => (trace ? flatten(trace, folded, filter.trim().toLowerCase()) : []), [trace, folded, filter]);
  if (!trace) return html`<${Page} title=${id}><${Problem} error=${error} />${!error && html`<${Empty}>Loading.<//>`}<//>`;
  const fold = (op) => setFolded((old) => {
    const next = new Set(old);
    if (!next.delete(op)) next.add(op);
    return next;
  });
  const shown = chosen && rows.find((row) => row.op?.op === chosen)?.op;
  const { totals } = trace;
  return html`<${Page} title=${trace.run ?? trace.session} about=${`Began ${clock(trace.started_ms)}, took ${duration(trace.latency_ms)}.`}
      actions=${html`<a href="#/runs">All runs</a> <button onClick=${again}>Read again</button>`}>
    <dl class="facts"><dt>calls</dt><dd>${number(totals.tool_calls)}</dd><dt>requests</dt><dd>${number(totals.model_calls)}</dd>
      <dt>failed</dt><dd>${number(totals.failures)}</dd><dt>tokens</dt><dd>${number(tokens(totals.usage))}</dd><dt>cost</dt><dd>${money(totals.cost_usd)}</dd></dl>
    ${trace.left_out > 0 && html`<p class="note">${number(trace.left_out)} earlier operations are not shown.</p>`}
    <div class="filters"><label>Filter <input type="search" value=${filter} onInput=${(event) => setFilter(event.target.value)} /></label>
      <button onClick=${() => setFolded(new Set(rows.filter((row) => row.op?.children.length).map((row) => row.op.op)))}>Fold all</button>
      <button onClick=${() => setFolded(new Set())}>Unfold all</button></div>
    <div class="split"><${LongList} rows=${rows} label="Operations">${({ op, turn, depth }, index) => turn
      ? html`<div class="row turn" key=${`turn-${turn}-${index}`} role="treeitem" aria-level="1">Turn ${turn}</div>`
      : html`<${Row} key=${op.op} op=${op} depth=${depth} trace=${trace} folded=${folded.has(op.op)} chosen=${chosen === op.op}
          fold=${() => fold(op.op)} choose=${() => setChosen(op.op)} />`}<//>
      ${shown && html`<${Details} op=${shown} />`}</div>
  <//>`;
}

function Row({ op, depth, trace, folded, chosen, fold, choose }) {
  const span = Math.max(1, trace.latency_ms);
  const left = Math.min(99, (100 * (op.started_ms - trace.started_ms)) / span);
  const width = Math.max(0.5, Math.min(100 - left, (100 * op.latency_ms) / span));
  return html`<div class=${`row ${chosen ? "chosen" : ""}`} role="treeitem" aria-level=${depth + 1} aria-selected=${chosen}
      aria-expanded=${op.children.length ? !folded : undefined}>
    <span class="name" style=${{ paddingLeft: `${Math.min(depth, 12) * 16}px` }}>
      ${op.children.length ? html`<button class="fold" aria-label=${folded ? "Unfold" : "Fold"} onClick=${fold}>${folded ? "▸" : "▾"}</button>` : html`<span class="fold" />`}
      <button class="link" onClick=${choose}>${op.name}</button>${op.agent && html` <span class="dim">agent</span>`}</span>
    <${State} of=${op.status} /><span class="n">${duration(op.latency_ms)}</span>
    <svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class=${failed(op) ? "failed" : op.kind} x=${left} y="1" width=${width} height="6" /></svg></div>`;
}

function Details({ op }) {
  const facts = [
    ["kind", op.kind], ["status", html`<${State} of=${op.status} />`], ["started", clock(op.started_ms)], ["took", duration(op.latency_ms)],
    ["waited", duration(op.wait_ms)], ["people took", op.person_ms ? duration(op.person_ms) : ""], ["decided by", op.decided_by],
    ["a person said", op.approval], ["call", op.call && html`<code>${op.call}</code>`], ["attempts", op.attempts], ["out of the cache", op.cached ? "yes" : ""],
    ["characters in, out", `${number(op.characters_in)}, ${number(op.characters_out)}`], ["tokens", op.usage && number(tokens(op.usage))],
    ["cost", op.cost_usd === null ? "" : money(op.cost_usd)], ["agent's run", op.agent && html`<a href=${`#/runs/${encodeURIComponent(op.agent.run)}`}>${op.agent.run}</a>`],
    ["operation", html`<code>${op.op}</code>`], ["trace", html`<code>${op.trace}</code>`],
  ];
  return html`<aside aria-label="The chosen operation" aria-live="polite"><h2>${op.name}</h2><dl class="facts tall">${facts.filter(([, value]) => value || value === 0)
    .map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl></aside>`;
}

// What needs attention now, and what today came to.

import { html, useLoad, Page, Problem, State, Table, number, money, duration, ago, tokens } from "../ui.js";

const midnight = () => new Date().setHours(0, 0, 0, 0);

/** What helps with a source that failed. */
function remedy({ error, withheld }) {
  if (withheld.length) return "Look at what changed.";
  if (!error) return "";
  if (/unauthorized|401|log ?in|oauth/i.test(error)) return html`Sign in: <code>toolwright mcp login NAME</code>`;
  if (/no such file|not found|cannot start|spawn/i.test(error)) return html`Check its command: <code>toolwright doctor</code>`;
  return html`See why: <code>toolwright doctor</code>`;
}

/** The operations that the events say are under way. */
export function running(events) {
  const open = new Map();
  for (const event of events) {
    const id = event.op?.id ?? event.id;
    if (/_started$/.test(event.event)) open.set(id, event);
    if (/_finished$/.test(event.event)) open.delete(id);
  }
  return [...open.values()];
}

export function Overview({ events, waiting }) {
  const since = midnight();
  const providers = useLoad("/api/providers", 5000);
  const usage = useLoad(`/api/usage?by=day&since_ms=${since}`, 5000);
  const traces = useLoad("/api/traces?limit=8", 5000);
  const totals = usage.data?.totals;
  const sums = [
    ["Waiting for you", number(waiting), "#/approvals", waiting > 0],
    ["Running now", number(running(events).length), "#/runs"],
    ["Calls today", totals && number(totals.tool_calls), "#/costs"],
    ["Failures today", totals && number(totals.failures), "#/runs", totals?.failures > 0],
    ["Tokens today", totals && number(tokens(totals.usage)), "#/costs"],
    ["Cost today", totals && money(totals.cost_usd), "#/costs"],
  ];
  return html`<${Page} title="Overview" about="What runs, what waits, and what today came to.">
    <${Problem} error=${providers.error ?? usage.error} />
    <ul class="sums">${sums.map(([name, value, href, alarm]) => html`<li class=${alarm ? "alarm" : ""}><a href=${href}>
      <strong>${value ?? "…"}</strong><span>${name}</span></a></li>`)}</ul>
    <h2>Sources of tools</h2>
    <${Table} label="Sources of tools" rows=${providers.data} none="No source is configured: toolwright mcp add NAME COMMAND adds one." columns=${[
      ["source", (row) => row.name], ["kind", (row) => row.kind], ["state", (row) => html`<${State} of=${row.state} />`],
      ["tools", (row) => number(row.tools), "n"],
      ["why, and what helps", (row) => html`${row.error ? `${row.error}. ` : ""}${row.withheld.length > 0 && html`<a href="#/pins">${row.withheld.length} tools are withheld</a>. `}${remedy(row)}`],
    ]} />
    <h2>Last runs and sessions</h2>
    <${Table} label="Last runs and sessions" rows=${traces.data?.traces} none="Nothing was called yet." keyOf=${(row) => row.run ?? row.session}
      href=${(row) => `#/runs/${encodeURIComponent(row.run ?? row.session)}`} columns=${[
        ["run or session", (row) => row.run ?? row.session], ["ended", (row) => ago(row.ended_ms)],
        ["took", (row) => duration(row.ended_ms - row.started_ms), "n"], ["calls", (row) => number(row.tool_calls), "n"],
        ["failed", (row) => (row.failures ? html`<span class="bad">${number(row.failures)}</span>` : "0"), "n"],
        ["cost", (row) => money(row.cost_usd), "n"],
      ]} />
  <//>`;
}

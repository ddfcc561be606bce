// What needs attention now, and what today came to.

import { html, useLoad, Page, Problem, State, Table, Named, Ended, tookOf, number, money, duration, clock, tokens } from "../ui.js";

const midnight = () => new Date().setHours(0, 0, 0, 0);

/** What helps with a source that failed. */
function remedy({ name, kind, error, withheld }) {
  if (withheld.length) return "Look at what changed.";
  if (!error) return "";
  if (/unauthorized|401|log ?in|oauth/i.test(error)) return html`Sign in: <code>toolwright mcp login ${name}</code>`;
  if (/no such file|not found|cannot start|spawn/i.test(error)) return html`Check the command of ${kind} ${name} in the configuration: <code>toolwright doctor</code>`;
  return html`See why: <code>toolwright doctor</code>`;
}

/** Runs and jobs that are under way. */
function running(agents, jobs, traces) {
  const live = (agents?.trees ?? []).flatMap((tree) => tree.agents.filter((node) => node.live));
  const runs = live.map((node) => ({ id: node.run, name: node.name || node.run, kind: node.parent ? "agent" : "run", href: `#/runs/${encodeURIComponent(node.run)}`, says: `${number(node.spent.tokens)} tokens, ${money(node.spent.cost_usd)}` }));
  const others = (traces?.traces ?? []).filter((row) => row.live && !live.some((node) => node.run === (row.run ?? row.session))).map((row) => ({
    id: row.run ?? row.session, name: agents?.trees.find((tree) => tree.run === row.run)?.agents[0]?.name || (row.run ?? row.session), kind: row.run ? "run" : "session", href: `#/runs/${encodeURIComponent(row.run ?? row.session)}`, says: `since ${clock(row.started_ms)}`,
  }));
  return [...runs, ...others, ...(jobs?.jobs ?? []).map((job) => ({ id: job.id, name: job.tool, kind: "job", state: job.state, href: `#/jobs/${encodeURIComponent(job.id)}`, says: `since ${clock(Date.parse(job.created))}` }))];
}

export function Overview({ waiting }) {
  const since = midnight();
  const providers = useLoad("/api/providers", 5000);
  const usage = useLoad(`/api/usage?by=day&since_ms=${since}`, 5000);
  const traces = useLoad("/api/traces?limit=50", 3000);
  const agents = useLoad("/api/agents?limit=20", 3000);
  const jobs = useLoad("/api/jobs?open=true&limit=20", 3000);
  const now = running(agents.data, jobs.data, traces.data);
  const totals = usage.data?.totals;
  const sums = [
    ["Waiting for you", number(waiting), "#/approvals", waiting > 0],
    ["Running now", agents.data && number(now.length), "#/runs"],
    ["Calls today", totals && number(totals.tool_calls), "#/costs"],
    ["Failures today", totals && number(totals.failures), "#/runs", totals?.failures > 0],
    ["Tokens today", totals && number(tokens(totals.usage)), "#/costs"],
    ["Cost today", totals && money(totals.cost_usd), "#/costs"],
  ];
  return html`<${Page} title="Overview" about="Running work, open questions, and totals of today.">
    <${Problem} error=${providers.error ?? usage.error} />
    <ul class="sums">${sums.map(([name, value, href, alarm]) => html`<li class=${alarm ? "alarm" : ""}><a href=${href}>
      <strong>${value ?? "…"}</strong><span>${name}</span></a></li>`)}</ul>
    ${now.length > 0 && html`<h2>Running now</h2>
      <${Table} label="Running now" rows=${now} href=${(row) => row.href} columns=${[
        ["what", (row) => row.name], ["kind", (row) => row.kind], ["state", (row) => html`<${State} of=${row.state ?? "running"} />`], ["so far", (row) => row.says],
      ]} />`}
    <h2>Sources of tools</h2>
    <${Table} label="Sources of tools" rows=${providers.data} none="No source is configured: toolwright add NAME -- COMMAND adds one." columns=${[
      ["source", (row) => row.name], ["kind", (row) => row.kind], ["state", (row) => html`<${State} of=${row.state} />`],
      ["tools", (row) => number(row.tools), "n"],
      ["why, and what helps", (row) => (row.error || row.withheld.length > 0) && html`${row.error ? `${row.error.replace(/[.?!]$/, "")}${/[?!]$/.exec(row.error) ?? "."} ` : ""}${row.withheld.length > 0 && html`<a href="#/pins">${row.withheld.length === 1 ? "A tool is withheld" : `${row.withheld.length} tools are withheld`}</a>. `}${remedy(row)}`],
    ]} />
    <h2>Last runs and sessions</h2>
    <${Table} label="Last runs and sessions" rows=${traces.data?.traces.slice(0, 8)} none="Nothing was called yet." keyOf=${(row) => row.run ?? row.session}
      href=${(row) => `#/runs/${encodeURIComponent(row.run ?? row.session)}`} columns=${[
        ["run or session", (row) => html`<${Named} name=${agents.data?.trees.find((tree) => tree.run === row.run)?.agents[0]?.name} id=${row.run ?? row.session} />`], ["ended", (row) => html`<${Ended} of=${row} />`],
        ["took", (row) => duration(tookOf(row)), "n"], ["calls", (row) => number(row.tool_calls), "n"],
        ["failed", (row) => (row.failures ? html`<span class="bad">${number(row.failures)}</span>` : "0"), "n"],
        ["cost", (row) => money(row.cost_usd), "n"],
      ]} />
  <//>`;
}

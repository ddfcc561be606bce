// What calls and models cost: by day, model, tool, run and principal.

import { html, useLoad, useState, Page, Problem, Table, number, money, duration, tokens } from "../ui.js";

const DAY = 86_400_000;
const BY = [["model", "model"], ["agent", "agent"], ["tool", "tool"], ["run", "run or session"], ["principal", "principal"]];

export function Costs() {
  const [days, setDays] = useState(14);
  const [by, setBy] = useState("model");
  const today = Math.floor(Date.now() / DAY) * DAY;
  const since = today - (days - 1) * DAY;
  const daily = useLoad(`/api/usage?by=day&since_ms=${since}`, 10000);
  const budgets = useLoad("/api/budgets", 10000);
  const sums = useLoad(`/api/usage?by=${by}&since_ms=${since}`, 10000);
  const rows = sums.data && [...sums.data.rows].sort((a, b) => (b.cost_usd ?? 0) - (a.cost_usd ?? 0) || b.tool_calls + b.model_calls - a.tool_calls - a.model_calls);
  const { totals } = daily.data ?? {};
  return html`<${Page} title="Costs" about=${totals && `${money(totals.cost_usd)} and ${number(tokens(totals.usage))} tokens in ${days} days.`}>
    <${Problem} error=${daily.error ?? sums.error} />
    <div class="filters"><label>Days <select value=${days} onChange=${(event) => setDays(Number(event.target.value))}>
      ${[1, 7, 14, 30].map((n) => html`<option value=${n}>${n}</option>`)}</select></label>
      <label>By <select value=${by} onChange=${(event) => setBy(event.target.value)}>${BY.map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select></label></div>
    ${daily.data && html`<${Days} rows=${daily.data.rows} since=${since} days=${days} />`}
    ${totals?.open_costs > 0 && html`<p class="note">${number(totals.open_costs)} requests went to models without a known price.</p>`}
    <${Table} label="Sums" rows=${rows} none="Nothing was called in this time." columns=${[
      [BY.find(([value]) => value === by)[1], (row) => row.name || "no named agent"], ["calls", (row) => number(row.tool_calls), "n"], ["requests", (row) => number(row.model_calls), "n"],
      ["failed", (row) => (row.failures ? html`<span class="bad">${number(row.failures)}</span>` : "0"), "n"], ["p50", (row) => duration(row.p50_us / 1000), "n"],
      ["tokens in", (row) => number(row.usage.input_tokens), "n"], ["tokens out", (row) => number(row.usage.output_tokens), "n"], ["cost", (row) => money(row.cost_usd), "n"],
    ]} />
    ${budgets.data && html`<h2>Budgets of tokens</h2>
      <${Table} label="Budgets of tokens" rows=${budgets.data.tokens.filter((row) => row.spent)} none="No token has a budget: server.tokens in the configuration gives one." keyOf=${(row) => row.token} columns=${[
        ["token", (row) => html`${row.token} <span class="dim">${row.period}</span>`], ["requests", (row) => html`<${Used} of=${row.spent.requests} most=${row.limits?.requests} shown=${number} />`, "n"],
        ["tokens", (row) => html`<${Used} of=${row.spent.tokens} most=${row.limits?.tokens} shown=${number} />`, "n"], ["cost", (row) => html`<${Used} of=${row.spent.cost_usd} most=${row.limits?.cost_usd} shown=${money} />`, "n"],
      ]} /><p class="note">What they may use of models at <code>/v1</code> in each period. Budgets of runs stand at <a href="#/agents">Agents</a>.</p>`}
  <//>`;
}

/** What is used of what there is. */
function Used({ of, most, shown }) {
  if (most === null || most === undefined) return html`${shown(of)} <span class="dim">no limit</span>`;
  return html`${shown(of)} of ${shown(most)} <meter min="0" max=${most || 1} value=${of} aria-label=${`${shown(of)} of ${shown(most)}`} />`;
}

/** A bar for each day: cost where there is any, else calls. */
function Days({ rows, since, days }) {
  const byDay = new Map(rows.map((row) => [Number(row.name), row]));
  const hasCost = rows.some((row) => row.cost_usd);
  const value = (row) => (row ? (hasCost ? (row.cost_usd ?? 0) : row.tool_calls + row.model_calls) : 0);
  const list = Array.from({ length: days }, (_, index) => since + index * DAY).map((day) => ({ day, row: byDay.get(day) }));
  const most = Math.max(...list.map(({ row }) => value(row)), 0);
  const label = (day) => new Date(day).toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
  const shown = (row) => (hasCost ? money(value(row)) : `${number(value(row))} operations`);
  return html`<figure><figcaption>${hasCost ? "Cost" : "Operations"} by day (UTC)</figcaption>
    <ol class="days">${list.map(({ day, row }) => html`<li title=${`${label(day)}: ${shown(row)}`}>${most > 0 && value(row) === most && html`<span aria-hidden="true">${shown(row)}</span>`}<svg viewBox="0 0 10 100" preserveAspectRatio="none" aria-hidden="true">
      <rect x="1" width="8" y=${100 - (most ? (98 * value(row)) / most : 0)} height="100" /></svg><span>${label(day)}</span><span class="hidden">${shown(row)}</span></li>`)}</ol></figure>`;
}

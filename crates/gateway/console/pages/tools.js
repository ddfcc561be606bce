// The catalogue: every tool with what it costs a model, how it does, and a form to try it.

import { html, useLoad, useState, useMemo, Page, Problem, Table, Json, State, Empty, number, duration } from "../ui.js";
import { post } from "../api.js";
import { Form } from "../form.js";

/** About how many tokens a model reads of a tool: four characters make one. */
const weight = (tool) => Math.ceil((tool.wire_name.length + tool.description.length + JSON.stringify(tool.parameters ?? {}).length) / 4);

export const effects = ({ read_only, destructive, open_world, idempotent }) =>
  [read_only ? "reads" : destructive ? "may destroy" : "writes", idempotent && !read_only && "repeatable", open_world && "reaches out"]
    .filter(Boolean).join(", ");

export function Tools({ id }) {
  return id ? html`<${Tool} key=${id} id=${id} />` : html`<${Catalogue} />`;
}

function Catalogue() {
  const [query, setQuery] = useState("");
  const [source, setSource] = useState("");
  const all = useLoad("/api/tools", 15000);
  const found = useLoad(query.trim() ? `/api/search?limit=100&query=${encodeURIComponent(query.trim())}` : null);
  const usage = useLoad("/api/usage?by=tool", 15000);
  const used = useMemo(() => new Map(usage.data?.rows.map((row) => [row.name, row])), [usage.data]);
  const sources = useMemo(() => {
    const sums = new Map();
    for (const tool of all.data ?? []) sums.set(tool.provider, (sums.get(tool.provider) ?? 0) + weight(tool));
    return [...sums].sort((a, b) => b[1] - a[1]);
  }, [all.data]);
  const byName = useMemo(() => new Map(all.data?.map((tool) => [tool.wire_name, tool])), [all.data]);
  const listed = query.trim() ? found.data?.map((hit) => ({ ...byName.get(hit.wire_name), ...hit })) : all.data;
  const rows = listed?.filter((tool) => !source || tool.provider === source);
  const total = sources.reduce((sum, [, tokens]) => sum + tokens, 0);
  return html`<${Page} title="Tools" about=${all.data && `${number(all.data.length)} tools; a model that is shown all of them reads about ${number(total)} tokens.`}>
    <${Problem} error=${all.error ?? found.error} />
    <div class="filters"><label>Search as a model does <input type="search" value=${query} onInput=${(event) => setQuery(event.target.value)} /></label>
      <label>Source <select value=${source} onChange=${(event) => setSource(event.target.value)}><option value="">all</option>
        ${sources.map(([name, tokens]) => html`<option value=${name}>${name} (≈ ${number(tokens)} tokens)</option>`)}</select></label></div>
    <${Table} label="Tools" rows=${rows} none=${query ? "No tool fits these words." : "There are no tools."} href=${(row) => `#/tools/${encodeURIComponent(row.wire_name)}`}
      keyOf=${(row) => row.wire_name} columns=${[
        ["tool", (row) => row.wire_name],
        ...(query.trim() ? [["score", (row) => row.score?.toFixed?.(2) ?? "", "n"]] : []),
        ["does", (row) => html`<span class="short">${row.description}</span>`],
        ["effects", (row) => row.effects && effects(row.effects)], ["≈ tokens", (row) => row.parameters !== undefined && number(weight(row)), "n"],
        ["calls", (row) => number(used.get(row.id)?.tool_calls ?? 0), "n"],
        ["failed", (row) => share(used.get(row.id)), "n"], ["p50", (row) => used.get(row.id) && duration(used.get(row.id).p50_us / 1000), "n"],
      ]} />
  <//>`;
}

const share = (row) => (row?.failures ? html`<span class="bad">${Math.round((100 * row.failures) / row.tool_calls)} %</span>` : "");

function Tool({ id }) {
  const { data: tool, error } = useLoad(`/api/tools/${encodeURIComponent(id)}`);
  const [asJson, setAsJson] = useState(false);
  const [text, setText] = useState("{}");
  const [busy, setBusy] = useState(false);
  const [ended, setEnded] = useState([]);
  const run = async (args) => {
    setBusy(true);
    const asked = { args, at: Date.now() };
    try {
      asked.outcome = await post("/api/call", { tool: id, arguments: args });
    } catch (problem) {
      asked.error = problem;
    }
    setEnded((old) => [asked, ...old].slice(0, 20));
    setBusy(false);
  };
  if (!tool) return html`<${Page} title=${id}><${Problem} error=${error} />${!error && html`<${Empty}>Loading.<//>`}<//>`;
  const warns = !tool.effects.read_only;
  return html`<${Page} title=${tool.wire_name} about=${tool.description} actions=${html`<a href="#/tools">All tools</a>`}>
    <dl class="facts"><dt>id</dt><dd><code>${tool.id}</code></dd><dt>source</dt><dd>${tool.provider}</dd><dt>effects</dt><dd>${effects(tool.effects)}</dd>
      <dt>tokens</dt><dd>≈ ${number(weight(tool))}</dd></dl>
    <div class="columns"><section><h2>Try it</h2>
      <p class="note">${warns ? "It may change something. " : ""}The policy of the server decides on the call, as on that of any client.</p>
      <label class="check"><input type="checkbox" checked=${asJson} onChange=${() => setAsJson(!asJson)} /> Write the arguments as JSON</label>
      ${asJson
        ? html`<form class="fields" onSubmit=${(event) => { event.preventDefault(); run(text); }}><label for="raw">Arguments</label>
            <textarea id="raw" rows="8" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)} /><button class="main" disabled=${busy}>Run</button></form>`
        : html`<${Form} schema=${tool.parameters} busy=${busy} submit=${run} />`}
      <div aria-live="polite">${ended.map((one) => html`<${Ended} key=${one.at} ...${one} />`)}</div></section>
    <section><h2>Schema of the arguments</h2><${Json} value=${tool.parameters ?? "none is published"} label="Schema" />
      ${tool.definition.output_schema && html`<h2>Schema of the result</h2><${Json} value=${tool.definition.output_schema} />`}</section></div>
  <//>`;
}

function Ended({ args, outcome, error, at }) {
  if (error) return html`<article><${Problem} error=${error} /></article>`;
  const waits = outcome.status === "approval";
  return html`<article><h3><${State} of=${outcome.ok ? "ok" : waits ? "pending" : (outcome.error?.kind ?? outcome.status)} /> ${duration(outcome.latency_ms)}
      <span class="dim"> ${new Date(at).toLocaleTimeString("en-GB")}</span></h3>
    ${waits && html`<p>It waits for a person: <a href="#/approvals">approvals</a>.</p>`}
    ${outcome.error && html`<p class="bad">${outcome.error.message}</p>`}
    ${outcome.text && html`<${Json} value=${outcome.text} label="Result" />`}
    ${outcome.structured !== undefined && html`<${Json} value=${outcome.structured} label="Structured result" />`}
    <details><summary>Arguments</summary><${Json} value=${args} /></details></article>`;
}

// The catalogue: every tool with what it costs a model, how it does, and a form to try it.

import { html, useLoad, useState, useMemo, Page, Problem, Table, Json, State, Empty, Facts, Tabs, More, clock, number, duration, short } from "../ui.js";
import { get, me, post } from "../api.js";
import { Form } from "../form.js";

export const effects = ({ read_only, destructive, open_world, idempotent }) =>
  [read_only ? "reads" : destructive ? "may destroy" : "writes", idempotent && !read_only && "repeatable", open_world && "reaches out"]
    .filter(Boolean).join(", ");

/** Lines of a stored result that are read at once. */
const PART = 200;

export function Tools({ id }) {
  if (id === "prompt") return html`<${Prompt} />`;
  return id ? html`<${Tool} key=${id} id=${id} />` : html`<${Catalogue} />`;
}

const VIEWS = [["", "Catalogue"], ["prompt", "What would a prompt be shown?"]];
const Views = ({ at }) => html`<${Tabs} label="Views of the catalogue" of=${VIEWS} at=${at} go=${(name) => { location.hash = name ? `#/tools/${name}` : "#/tools"; }} />`;

/** What a model would be shown for a prompt, and why. */
function Prompt() {
  const [prompt, setPrompt] = useState("");
  const [result, setResult] = useState(null);
  const [error, setError] = useState(null);
  const ask = (event) => {
    event.preventDefault();
    get(`/api/pick?max=50&prompt=${encodeURIComponent(prompt.trim())}`).then((found) => { setResult(found); setError(null); }, setError);
  };
  const most = result?.shown_usually;
  return html`<${Page} title="What would a prompt be shown?" about="The selection that agents use, with its scores and reasons.">
    <${Views} at="prompt" />
    <form class="say" onSubmit=${ask}><label class="hidden" for="prompt">Prompt</label><textarea id="prompt" rows="2" value=${prompt} placeholder="What the user wants done" onInput=${(event) => setPrompt(event.target.value)} />
      <button class="main" disabled=${!prompt.trim()}>Show</button></form>
    <${Problem} error=${error} />
    ${result && html`<p class="note">${number(result.candidates)} tools could be picked; ${result.scorer} ordered them${!most || !result.picks.length ? "" : result.picks.length > most ? `; the first ${most} are shown` : "; all that fit are shown"}.
        ${result.fell_back.map((one) => ` ${one.scorer} did not score: ${one.reason}.`)}</p>
      <${Table} label="Tools that fit" rows=${result.picks.map((pick, index) => ({ ...pick, index }))} none="No tool matches it." keyOf=${(row) => row.wire_name} href=${(row) => `#/tools/${encodeURIComponent(row.wire_name)}`} columns=${[
        ["tool", (row) => row.wire_name], ["shown", (row) => (most && row.index >= most ? html`<span class="dim">found by search</span>` : html`<span class="state good">shown</span>`)],
        ["score", (row) => html`${row.score.toFixed(2)} <meter min="0" max="1" value=${row.score} aria-label="Score" />`, "n"], ["why", (row) => row.reason], ["tokens", (row) => number(row.tokens), "n"],
      ]} />
      ${result.excluded.length > 0 && html`<details><summary>${number(result.excluded.length)} tools were no candidates</summary>
        <ul>${result.excluded.map((one) => html`<li><code>${one.id}</code> ${one.reason}</li>`)}</ul></details>`}`}
  <//>`;
}

function Catalogue() {
  const [query, setQuery] = useState("");
  const [source, setSource] = useState("");
  const all = useLoad("/api/tools", 15000);
  const found = useLoad(query.trim() ? `/api/search?limit=100&query=${encodeURIComponent(query.trim())}` : null);
  const usage = useLoad("/api/usage?by=tool", 15000);
  const [api, setApi] = useState(me.model_apis[0] ?? "openai_chat");
  const [model, setModel] = useState("");
  const models = useLoad(me.changes ? "/v1/models" : null);
  const names = [...new Set(models.data?.data.map(({ id }) => id.replace(/^raw\//, "")).filter((id) => id.includes("/")))];
  const counted = useLoad(`/api/tokens?api=${api}${model && `&model=${encodeURIComponent(model)}`}`, 15000);
  const exact = counted.data?.model;
  const counts = useMemo(() => new Map(counted.data?.tools.map((row) => [row.wire_name, row])), [counted.data]);
  const used = useMemo(() => new Map(usage.data?.rows.map((row) => [row.name, row])), [usage.data]);
  const sources = useMemo(() => [...(counted.data?.providers ?? [])].sort((one, other) => other.tokens - one.tokens), [counted.data]);
  const byName = useMemo(() => new Map(all.data?.map((tool) => [tool.wire_name, tool])), [all.data]);
  const listed = query.trim() ? found.data?.map((hit) => ({ ...byName.get(hit.wire_name), ...hit })) : all.data;
  const rows = listed?.filter((tool) => !source || tool.provider === source);
  const total = counted.data?.tokens;
  return html`<${Page} title="Tools" about=${all.data && `${number(all.data.length)} tools${total === undefined ? "." : `; a model that is shown all of them reads ${exact ? "" : "about "}${number(total)} tokens.`}`}>
    <${Views} at="" />
    <${Problem} error=${all.error ?? found.error} />
    <div class="filters"><label>Search as a model does <input type="search" value=${query} onInput=${(event) => setQuery(event.target.value)} /></label>
      <label>Source <select value=${source} onChange=${(event) => setSource(event.target.value)}><option value="">all</option>
        ${sources.map(({ name }) => html`<option value=${name}>${name}</option>`)}</select></label>
      <label>Tokens as sent to <select name="api" value=${api} onChange=${(event) => setApi(event.target.value)}>${me.model_apis.map((name) => html`<option value=${name}>${name.replace("_", " ")}</option>`)}</select></label>
      ${names.length > 0 && html`<label>Counted as <select value=${model} onChange=${(event) => setModel(event.target.value)}><option value="">an estimate</option>
        ${names.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>`}</div>
    ${model && counted.data && !exact && html`<p class="note">The tokenizer of ${model} is not known: tokens are estimated at four bytes each. <code>models.${model}.tokenizer</code> names one.</p>`}
    ${!query.trim() && !source && sources.length > 0 && html`<ul class="shares" aria-label="What each source costs">${sources.slice(0, 12).map((one) => html`<li key=${one.name}>
      <button class="link" onClick=${() => setSource(one.name)}>${one.name}</button> <meter min="0" max=${total || 1} value=${one.tokens} aria-label=${`Tokens of ${one.name}`} /> <span class="n">${number(one.tokens)} tokens</span>
      <span class="dim n">${number(one.bytes)} bytes</span> <span class="dim n">${one.tools === 1 ? "1 tool" : `${number(one.tools)} tools`}</span></li>`)}
      <li class="all"><strong>all of them</strong> <span class="rule" aria-hidden="true" /> <strong class="n">${number(total)} tokens</strong> <span class="dim n">${number(counted.data.bytes)} bytes</span> <span class="dim n">${number(counted.data.tools.length)} tools</span></li></ul>`}
    <${Table} label="Tools" rows=${rows} none=${query ? "No tool fits these words." : "There are no tools."} href=${(row) => `#/tools/${encodeURIComponent(row.wire_name)}`}
      keyOf=${(row) => row.wire_name} columns=${[
        ["tool", (row) => row.wire_name],
        ...(query.trim() ? [["score", (row) => row.score?.toFixed?.(2) ?? "", "n"]] : []),
        ["does", (row) => html`<span class="short">${row.description}</span>`],
        ["effects", (row) => row.effects && effects(row.effects)], [exact ? "tokens" : "≈ tokens", (row) => html`${number(counts.get(row.wire_name)?.tokens)}${counts.get(row.wire_name)?.losses > 0 && html` <span class="busy" title="This API cannot be told all of its schema">*</span>`}`, "n"],
        ["calls", (row) => number(used.get(row.id)?.tool_calls ?? 0), "n"],
        ["failed", (row) => share(used.get(row.id)), "n"], ["p50", (row) => used.get(row.id) && duration(used.get(row.id).p50_us / 1000), "n"],
      ]} />
  <//>`;
}

const share = (row) => (row?.failures ? html`<span class="bad">${Math.round((100 * row.failures) / row.tool_calls)} %</span>` : "");

function Tool({ id }) {
  const { data: tool, error } = useLoad(`/api/tools/${encodeURIComponent(id)}`);
  const usage = useLoad("/api/usage?by=tool", 15000);
  const of = usage.data?.rows.find((row) => row.name === tool?.id);
  const [asJson, setAsJson] = useState(false);
  const [text, setText] = useState("{}");
  const [busy, setBusy] = useState(false);
  const [ended, setEnded] = useState([]);
  const [limit, setLimit] = useState(20);
  const past = useLoad(`/api/tools/${encodeURIComponent(id)}/calls?limit=${limit}`, 15000);
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
    past.again();
    usage.again();
  };
  if (!tool) return html`<${Page} title=${id}><${Problem} error=${error} />${!error && html`<${Empty}>Loading.<//>`}<//>`;
  const warns = !tool.effects.read_only;
  return html`<${Page} title=${tool.wire_name} about=${tool.description} actions=${html`<a href="#/tools">All tools</a>`}>
    <${Facts} of=${[["id", html`<code>${tool.id}</code>`], ["source", tool.provider], ["effects", effects(tool.effects)], ["calls", number(of?.tool_calls ?? 0)],
      ["failed", of?.failures ? number(of.failures) : "", "bad"], ["p50", of && duration(of.p50_us / 1000)]]} />
    <div class="columns"><section><h2>Try it</h2>
      <p class="note">${warns ? "It may change something. " : ""}The policy of the server decides on the call, as on that of any client.</p>
      ${!me.changes && html`<p class="note">This token only reads.</p>`}
      <label class="check"><input type="checkbox" checked=${asJson} onChange=${() => setAsJson(!asJson)} /> Write the arguments as JSON</label>
      ${asJson
        ? html`<form class="fields" onSubmit=${(event) => { event.preventDefault(); run(text); }}><label for="raw">Arguments</label>
            <textarea id="raw" rows="8" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)} /><button class="main" disabled=${busy || !me.changes}>Run</button></form>`
        : html`<${Form} schema=${tool.parameters} busy=${busy || !me.changes} submit=${run} />`}
      <div aria-live="polite">${ended.map((one) => html`<${Ended} key=${one.at} ...${one} />`)}</div></section>
    <section><h2>Schema of the arguments</h2><${Json} value=${tool.parameters ?? "none is published"} label="Schema" />
      ${tool.definition.output_schema && html`<h2>Schema of the result</h2><${Json} value=${tool.definition.output_schema} />`}</section></div>
    <h2>Last calls</h2>
    <${Problem} error=${past.error} />
    <${Table} label="Last calls" rows=${past.data?.calls} none="Nobody has called it yet." keyOf=${(row) => row.id} href=${(row) => `#/runs/${encodeURIComponent(row.run ?? row.session)}?op=${row.id}`} columns=${[
      ["when", (row) => clock(row.at_ms)], ["by", (row) => row.principal],
      ["came to", (row) => html`<${State} of=${row.status} />`], ["took", (row) => duration(row.latency_us / 1000), "n"],
      ["arguments", (row) => (row.arguments ? html`<span class="short"><code>${row.arguments}</code></span> <button class="small" onClick=${() => { setText(row.arguments); setAsJson(true); }}>Use</button>` : html`<span class="dim">not kept</span>`)],
      ["result", (row) => (row.result ? html`<span class="short"><code>${short(row.result, 200)}</code></span>` : row.note && html`<span class="short bad">${row.note}</span>`)],
    ]} />
    <${More} shown=${past.data?.calls.length} total=${of?.tool_calls} limit=${limit} most=${100} more=${setLimit} />
  <//>`;
}

/** A result that is kept because it is long, and its lines. */
function Stored({ handle }) {
  const [lines, setLines] = useState([]);
  const [error, setError] = useState(null);
  const read = () => post("/api/call", { tool: "output__read", arguments: { handle, line: lines.length * PART + 1, lines: PART } })
    .then((outcome) => (outcome.ok ? setLines([...lines, outcome.text]) : setError(outcome.error)), setError);
  return html`<p>The whole result is kept as <code>${handle}</code>. <button class="small" onClick=${read}>${lines.length ? "Read on" : "Read it"}</button></p>
    <${Problem} error=${error} />${lines.map((text, index) => html`<${Json} key=${index} value=${text} label=${`Part ${index + 1} of the result`} />`)}`;
}

/** What a result holds beside its text. */
function Block({ of }) {
  if (of.type === "text") return null;
  if (of.type === "image" && of.data) return html`<img class="result" src=${`data:${of.mimeType};base64,${of.data}`} alt="Image in the result" />`;
  const { uri, name, description, text } = of.resource ?? of;
  const link = /^https?:/i.test(uri ?? "") ? html`<a href=${uri} target="_blank" rel="noopener noreferrer">${uri}</a>` : uri && html`<code>${uri}</code>`;
  return html`<p>${of.type.replace("_", " ")} ${link || of.mimeType} <span class="dim">${[name, description].filter(Boolean).join(": ")}</span></p>${text && html`<${Json} value=${text} label="Resource" />`}`;
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
    ${(outcome.content ?? []).map((block, index) => html`<${Block} key=${index} of=${block} />`)}
    ${outcome.extras?.tool_output?.handle && html`<${Stored} handle=${outcome.extras.tool_output.handle} />`}
    <details><summary>Arguments</summary><${Json} value=${args} /></details></article>`;
}

// Background jobs, and the output of each as it grows.

import { html, useLoad, useState, Page, Problem, Table, Json, State, Empty, Facts, More, clock, plain } from "../ui.js";
import { me, post } from "../api.js";

const isOver = (job) => ["done", "error", "cancelled", "unknown"].includes(job.state);

export function Jobs({ id }) {
  return id ? html`<${Job} key=${id} id=${id} />` : html`<${List} />`;
}

function List() {
  const [open, setOpen] = useState(false);
  const [limit, setLimit] = useState(100);
  const { data, error } = useLoad(`/api/jobs?limit=${limit}${open ? "&open=true" : ""}`, 2000);
  return html`<${Page} title="Jobs" about="Calls that run in the background, newest first."
      actions=${html`<label class="check"><input type="checkbox" checked=${open} onChange=${() => setOpen(!open)} /> Only unfinished jobs</label>`}>
    <${Problem} error=${error} />
    ${!error && html`<${Table} label="Jobs" rows=${data?.jobs} none="There are no jobs." href=${(row) => `#/jobs/${encodeURIComponent(row.id)}`} columns=${[
      ["job", (row) => row.id], ["tool", (row) => plain(row.tool)], ["state", (row) => html`<${State} of=${row.state} />`],
      ["created", (row) => clock(Date.parse(row.created))], ["ended", (row) => (row.ended ? clock(Date.parse(row.ended)) : "")], ["of", (row) => row.principal],
    ]} />`}
    <${More} shown=${data?.jobs.length} total=${data?.total} limit=${limit} most=${10_000} more=${setLimit} />
  <//>`;
}

function Job({ id }) {
  const path = `/api/jobs/${encodeURIComponent(id)}`;
  const job = useLoad(path, 1000);
  const output = useLoad(`${path}/output?lines=1000&offset=-1000`, 1000);
  const [said, setSaid] = useState(null);
  const [input, setInput] = useState("");
  const act = (what, body) => post(`${path}/${what}`, body).then(() => { setSaid(null); job.again(); }, setSaid);
  const { data } = job;
  const repeat = () => post("/api/call", { tool: data.tool, arguments: data.arguments, background: true })
    .then(({ structured }) => { location.hash = structured?.job ? `#/jobs/${encodeURIComponent(structured.job)}` : "#/jobs"; }, setSaid);
  if (!data) return html`<${Page} title=${id}><${Problem} error=${job.error} />${!job.error && html`<${Empty}>Loading.<//>`}<//>`;
  return html`<${Page} title=${id} about=${plain(data.tool)} actions=${html`<a href="#/jobs">All jobs</a> ${!isOver(data) && me.changes && html`<button class="danger" onClick=${() => act("stop")}>Stop</button>`}
      ${isOver(data) && me.changes && html`<button onClick=${repeat}>Run again</button>`}`}>
    <${Problem} error=${said} />
    <${Facts} of=${[["state", html`<${State} of=${data.state} />`], ["created", clock(Date.parse(data.created))], ["ended", data.ended && clock(Date.parse(data.ended))],
      ["dispatched", data.attempts === 1 ? "once" : `${data.attempts} times`], ["of", data.principal], ["session", data.session]]} />
    ${data.state === "waiting_input" && me.changes && html`<form class="filters" onSubmit=${(event) => { event.preventDefault(); act("send", { input }); setInput(""); }}>
      <label>Input <input value=${input} onInput=${(event) => setInput(event.target.value)} /></label><button class="main">Send</button></form>`}
    <h2>Output</h2>
    ${output.data && output.data.first > 0 && html`<p class="note">${output.data.first} earlier lines are not shown.</p>`}
    <pre class="output" role="group" tabindex="0" aria-label="Output" aria-live="off">${output.data?.text ?? ""}</pre>
    <h2>Arguments</h2><${Json} value=${data.arguments} />
  <//>`;
}

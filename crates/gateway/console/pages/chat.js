// A conversation with an agent, by the Responses API of /v1: its calls stand inline, and so do the questions that they ask.

import { html, useLoad, useState, useEffect, useRef, Page, Problem, Json, State, Empty, short } from "../ui.js";
import { me, get, stream } from "../api.js";
import { Question, answerer } from "./approvals.js";

export function Chat({ id }) {
  const models = useLoad("/v1/models");
  const names = models.data?.data.map((model) => model.id).filter((name) => !name.startsWith("raw/")) ?? [];
  const agent = id || names[0] || "";
  return html`<${Page} title="Chat" about="Talk to an agent. It uses the tools of this server, and policy decides on its calls."
      actions=${html`<label>Agent or model <select value=${agent} onChange=${(event) => { location.hash = `#/chat/${encodeURIComponent(event.target.value)}`; }}>
        ${names.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>`}>
    <${Problem} error=${models.error} />
    ${models.data && !names.length ? html`<${Empty}>No model is configured.<//>` : agent && html`<${Conversation} key=${agent} agent=${agent} />`}
  <//>`;
}

function Conversation({ agent }) {
  const [items, setItems] = useState([]);
  const [text, setText] = useState("");
  const [ending, setEnding] = useState(null);
  const [asked, setAsked] = useState([]);
  const [said, setSaid] = useState(null);
  const previous = useRef(null);
  const end = useRef(null);
  useEffect(() => { end.current?.scrollIntoView({ block: "nearest" }); }, [items, asked]);
  // While the agent works, its questions are looked for.
  useEffect(() => {
    if (!ending || !me.changes) return undefined;
    const look = () => get("/api/approvals").then(({ questions }) => setAsked(questions), () => {});
    const timer = setInterval(look, 700);
    look();
    return () => { clearInterval(timer); setAsked([]); };
  }, [ending]);
  const change = (id, with_) => setItems((old) => (old.some((item) => item.id === id)
    ? old.map((item) => (item.id === id ? { ...item, ...with_(item) } : item)) : [...old, { id, ...with_({}) }]));
  const see = (event) => {
    const item = event.item;
    // One that was stopped or failed cannot be continued.
    if (event.type === "response.completed" || event.type === "response.incomplete") previous.current = event.response.id;
    else if (event.type === "response.output_text.delta") change(event.item_id, (old) => ({ type: "message", text: (old.text ?? "") + event.delta }));
    else if (item?.type === "mcp_call") change(item.id, () => item);
    else if (event.type === "response.failed" || event.type === "error") throw new Error(event.response?.error?.message ?? event.message ?? "The run failed.");
  };
  const send = async (event) => {
    event.preventDefault();
    const input = text.trim();
    if (!input) return;
    const control = new AbortController();
    setText("");
    setSaid(null);
    setEnding(control);
    setItems((old) => [...old, { id: `user-${old.length}`, type: "user", text: input }]);
    try {
      await stream("/v1/responses", { model: agent, input, stream: true, previous_response_id: previous.current ?? undefined }, see, control.signal);
    } catch (problem) {
      if (problem.name !== "AbortError") setSaid(problem);
    }
    setEnding(null);
  };
  const keys = (event) => { if (event.key === "Enter" && !event.shiftKey) send(event); };
  return html`<div class="talk"><div class="said" role="log" aria-label="Conversation" tabindex="0">
      ${!items.length && html`<p class="empty">Say what you want done.</p>`}
      ${items.map((item) => html`<${Item} key=${item.id} item=${item} />`)}
      ${asked.filter((one) => one.kind === "call").map((question) => html`<${Question} key=${question.id} question=${question} answer=${answerer(question, (result) => { setSaid(result.error ?? null); setAsked((old) => old.filter((one) => one.id !== question.id)); })} />`)}
      ${ending && !asked.length && html`<p class="dim" role="status">It works.</p>`}
      <div ref=${end} /></div>
    <${Problem} error=${said} />
    ${me.changes ? html`<form class="say" onSubmit=${send}><label class="hidden" for="say">Message</label>
      <textarea id="say" rows="2" value=${text} placeholder="Message; Enter sends" onInput=${(event) => setText(event.target.value)} onKeyDown=${keys} />
      ${ending ? html`<button type="button" class="danger" onClick=${() => ending.abort()}>Stop</button>` : html`<button class="main">Send</button>`}</form>`
      : html`<p class="note">This token only reads.</p>`}</div>`;
}

function Item({ item }) {
  if (item.type === "user") return html`<div class="turn-user"><span class="hidden">You: </span>${item.text}</div>`;
  if (item.type === "message") return html`<div class="turn-agent"><span class="hidden">Agent: </span>${item.text}</div>`;
  const state = item.error ? "failed" : item.status === "completed" ? "ok" : "running";
  return html`<details class="turn-call"><summary><${State} of=${state} /> <code>${item.name}</code> <span class="dim">${short(item.arguments, 90)}</span></summary>
    <${Json} value=${item.arguments || "{}"} label="Arguments" />${item.output && html`<${Json} value=${item.output} label="Result" />`}
    ${item.error && html`<p class="bad">${typeof item.error === "string" ? item.error : (item.error.message ?? JSON.stringify(item.error))}</p>`}</details>`;
}

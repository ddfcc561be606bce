// A conversation with an agent, by the Responses API of /v1: its calls stand inline, and so do the questions that they ask.

import { html, useLoad, useKeys, useState, useEffect, useRef, Page, Problem, Json, State, Empty, short } from "../ui.js";
import { me, get, stream } from "../api.js";
import { Question, answerer } from "./approvals.js";

export function Chat({ id }) {
  const models = useLoad(me.changes ? "/v1/models" : null);
  const names = models.data?.data.map((model) => model.id).filter((name) => !name.startsWith("raw/")) ?? [];
  const agent = id || names[0] || "";
  if (!me.changes) return html`<${Page} title="Chat"><${Empty}>This token only reads: it may talk to no agent.<//><//>`;
  return html`<${Page} title="Chat" about="Talk to an agent. It uses the tools of this server, and policy decides on its calls."
      actions=${html`<label>Agent or model <select value=${agent} onChange=${(event) => { location.hash = `#/chat/${encodeURIComponent(event.target.value)}`; }}>
        ${names.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>`}>
    <${Problem} error=${models.error} />
    ${models.data && !names.length ? html`<${Empty}>No model is configured.<//>` : agent && html`<${Conversation} key=${agent} agent=${agent} />`}
  <//>`;
}

/** The conversations of this page, by agent. They go on while another page is shown. */
const talks = new Map();
const begun = () => ({ items: [], text: "", ending: null, previous: null, responses: new Set(), over: new Set(), asked: [], said: null, draw() {} });
function talkOf(agent) {
  if (!talks.has(agent)) talks.set(agent, begun());
  return talks.get(agent);
}

/** The questions that the calls of a conversation, whose session is its first response, and of the agents below it, ask. */
async function questionsOf({ responses, over }) {
  const { questions } = await get("/api/approvals");
  const below = questions.some((one) => one.agents?.length > 0 && !responses.has(one.session)) ? (await get("/api/agents?limit=50")).trees : [];
  const ours = new Set([...responses, ...below.filter((tree) => responses.has(tree.run)).flatMap((tree) => tree.agents.map(({ run }) => run))]);
  return questions.filter(({ id, session }) => ours.has(session) && !over.has(id));
}

/** Sends what the user wrote, and puts what comes back into the conversation. */
async function send(talk, agent) {
  const input = talk.text.trim();
  // One at a time: each message continues the response to the last.
  if (!input || talk.ending) return;
  const change = (id, of) => {
    const index = talk.items.findIndex((item) => item.id === id);
    talk.items = index < 0 ? [...talk.items, { id, ...of({}) }] : talk.items.with(index, { ...talk.items[index], ...of(talk.items[index]) });
  };
  const see = (event) => {
    const item = event.item;
    if (event.response?.id) talk.responses.add(event.response.id);
    // One that was stopped or failed cannot be continued.
    if (event.type === "response.completed" || event.type === "response.incomplete") talk.previous = event.response.id;
    else if (event.type === "response.output_text.delta") change(event.item_id, (old) => ({ type: "message", text: (old.text ?? "") + event.delta }));
    else if (item?.type === "mcp_call") change(item.id, () => item);
    else if (event.type === "response.failed" || event.type === "error") throw new Error(event.response?.error?.message ?? event.message ?? "The run failed.");
    talk.draw();
  };
  const control = new AbortController();
  Object.assign(talk, { text: "", said: null, ending: control, items: [...talk.items, { id: `user-${talk.items.length}`, type: "user", text: input }] });
  talk.draw();
  try {
    await stream("/v1/responses", { model: agent, input, stream: true, previous_response_id: talk.previous ?? undefined }, see, control.signal);
  } catch (error) {
    if (error.name !== "AbortError") talk.said = { error };
  }
  talk.ending = null;
  // What was under way ended with the run.
  talk.items = talk.items.map((item) => (item.type === "mcp_call" && item.status !== "completed" ? { ...item, isOver: true } : item));
  talk.asked.forEach(({ id }) => talk.over.add(id));
  talk.asked = [];
  talk.draw();
}

function Conversation({ agent }) {
  const [, setRound] = useState(0);
  const draw = () => setRound((n) => n + 1);
  const talk = talkOf(agent);
  const { items, ending, said, asked } = talk;
  const end = useRef(null);
  useEffect(() => { talk.draw = draw; return () => { talk.draw = () => {}; }; }, []);
  useEffect(() => { end.current?.scrollIntoView({ block: "nearest" }); }, [items, asked.length]);
  // While the agent works, its questions are looked for.
  useEffect(() => {
    if (!ending) return undefined;
    let isOver = false;
    const look = () => questionsOf(talk).then((questions) => { if (!isOver && talk.ending) { talk.asked = questions; draw(); } }, () => {});
    const timer = setInterval(look, 700);
    look();
    return () => { isOver = true; clearInterval(timer); };
  }, [ending]);
  // The keys of the first question, which draws them.
  const keys = useRef({});
  keys.current = {};
  useKeys((key, mayAnswer) => {
    if (!mayAnswer || !keys.current[key]) return false;
    keys.current[key]();
    return true;
  });
  const answer = (question) => answerer(question, (result) => {
    talk.said = result.error ? { ...result, of: question.id } : null;
    if (!result.error) talk.asked = talk.asked.filter((one) => one.id !== question.id);
    draw();
  });
  const submit = (event) => { event.preventDefault(); send(talk, agent); };
  const write = (event) => { talk.text = event.target.value; draw(); };
  const anew = () => { talks.set(agent, { ...begun(), draw }); draw(); };
  const isOfQuestion = asked.some((one) => one.id === said?.of);
  return html`<div class="talk"><div class="said" role="log" aria-label="Conversation" tabindex="0">
      ${!items.length && html`<p class="empty">Say what you want done.</p>`}
      ${items.map((item) => html`<${Item} key=${item.id} item=${item} />`)}
      ${asked.map((question, index) => html`<${Question} key=${question.id} question=${question} keys=${index === 0 ? keys : null} root=${question.agents?.length > 0 && agent} problem=${said?.of === question.id ? said.error : null} answer=${answer(question)} />`)}
      ${ending && !asked.length && html`<p class="dim" role="status">It works.</p>`}
      <div ref=${end} /></div>
    ${!isOfQuestion && html`<${Problem} error=${said?.error} />`}
    <form class="say" onSubmit=${submit}><label class="hidden" for="say">Message</label>
      <textarea id="say" rows="2" value=${talk.text} placeholder="Message; Enter sends" onInput=${write} onKeyDown=${(event) => { if (event.key === "Enter" && !event.shiftKey) submit(event); }} />
      ${ending ? html`<button type="button" class="danger" onClick=${() => ending.abort()}>Stop</button>` : html`<button class="main">Send</button>`}</form>
    ${!ending && items.length > 0 && html`<p class="more"><button class="small" onClick=${anew}>Begin anew</button></p>`}</div>`;
}

function Item({ item }) {
  if (item.type === "user") return html`<div class="turn-user"><span class="hidden">You: </span>${item.text}</div>`;
  if (item.type === "message") return html`<div class="turn-agent"><span class="hidden">Agent: </span>${item.text}</div>`;
  const state = item.error ? "failed" : item.status === "completed" ? "ok" : item.isOver ? "cancelled" : "running";
  return html`<details class="turn-call"><summary><${State} of=${state} /> <code>${item.name}</code> <span class="dim">${short(item.arguments, 90)}</span></summary>
    <${Json} value=${item.arguments || "{}"} label="Arguments" />${item.output && html`<${Json} value=${item.output} label="Result" />`}
    ${item.error && html`<p class="bad">${typeof item.error === "string" ? item.error : (item.error.message ?? JSON.stringify(item.error))}</p>`}</details>`;
}

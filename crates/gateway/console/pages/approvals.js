// The inbox: what waits for a person, answered by keyboard.

import { html, useLoad, useNews, useKeys, useState, useEffect, useRef, Page, Problem, Table, Diff, Empty, More, State, clock, duration, short, plain } from "../ui.js";
import { me, post, del } from "../api.js";
import { effects } from "./tools.js";
import { Form } from "../form.js";

const COVERS = {
  tool: "this tool", tool_for_asker: "this tool, for this asker", tool_in_workspace: "this tool, in this workspace", this_call: "this call with these arguments",
};

/**
 * Sends answers to a question, and says what came of each: a message, or an error where another was first. A rule is written
 * only once the answer counts.
 */
export const answerer = (question, said) => (decision, { rule, ...more } = {}) => {
  const name = plain(question.tool ?? question.id);
  const write = () => post("/api/policy/save", { draft: rule.draft, base: rule.base }).then(
    (saved) => said({ message: `${name}: approve, and the rule is written to ${saved.file}. The file as it was is ${saved.backup}.`, saved }),
    (error) => said({ error: new Error(`${name} is approved this once. The rule was not written: ${error.message}`) }));
  return post(`/api/approvals/${encodeURIComponent(question.id)}`, { decision, ...more })
    .then(() => (rule ? write() : said({ message: `${name}: ${decision.replace("_", " ")}.` })), (error) => said({ error }));
};

/**
 * The question that is chosen, of those that are open now. It stays, whatever comes or goes around it. After an answer it is the
 * next one. One that went away by itself leaves no choice, as a key may be on its way to it.
 */
function chosenOf({ id, ids, answered }, open) {
  if (open.includes(id)) return id;
  if (!ids.length) return open[0];
  if (!answered.has(id)) return null;
  const place = ids.indexOf(id);
  return [...ids.slice(place + 1), ...ids.slice(0, place).reverse()].find((one) => open.includes(one)) ?? open[0];
}

export function Approvals({ events }) {
  const [all, setAll] = useState(false);
  const [limit, setLimit] = useState(50);
  const { data: page, error, again } = useLoad(`/api/approvals?limit=${limit}${all ? "&all=true" : ""}`, 2000);
  const data = page?.questions;
  // The list follows the events; where they are lost, it is read from time to time.
  useNews(events, (event) => event.event.startsWith("approval"), again);
  const [, draw] = useState(0);
  const [said, setSaid] = useState(null);
  const open = data?.filter((one) => one.state === "pending") ?? [];
  // Who began the work that asks.
  const { data: agents } = useLoad(open.some(({ kind }) => kind === "call") ? "/api/agents?limit=100" : null, 5000);
  const rootOf = ({ session }) => agents?.trees.find((tree) => tree.agents.some(({ run }) => run === session))?.agents[0]?.name;
  // What was drawn last: the chosen question, all that were open, and those that were answered here.
  const drawn = useRef({ id: null, ids: [], answered: new Set() });
  const ids = open.map((one) => one.id);
  Object.assign(drawn.current, { id: chosenOf(drawn.current, ids), ids });
  const { id: chosen, answered } = drawn.current;
  const choose = (id) => { drawn.current.id = id; draw((n) => n + 1); };
  const answer = (question, decision, more) => {
    setSaid(null);
    answered.add(question.id);
    answerer(question, (result) => { setSaid({ ...result, of: question.id }); again(); })(decision, more);
  };
  // What came of an answer stands at its question while that is open.
  const problem = ids.includes(said?.of) ? null : said?.error;
  // The keys of the chosen question, which draws them. A key is for what is drawn, which effects are too late to know.
  const keys = useRef({});
  keys.current = {};
  useKeys((key, mayAnswer) => {
    const index = ids.indexOf(chosen);
    if (key === "j") choose(ids[Math.min(index + 1, ids.length - 1)]);
    else if (key === "k") choose(ids[Math.max(index - 1, 0)]);
    else if (mayAnswer && keys.current[key]) {
      keys.current[key]();
      return true;
    }
    return false;
  });
  return html`<${Page} title="Approvals" about="Calls that wait for your approval, and questions of servers."
      actions=${html`<label class="check"><input type="checkbox" checked=${all} onChange=${() => setAll(!all)} /> Also settled questions</label>`}>
    <${Problem} error=${error} />
    <p role="status" class=${problem ? "problem" : "note"}>${problem?.message ?? said?.message ?? ""}</p>
    ${said?.saved && html`<${Diff} text=${said.saved.diff} label="What was written" />${!said.saved.in_force && html`<p class="note">The project's file has to be approved before it counts: <code>toolwright trust</code>.</p>`}`}
    ${data && !open.length && html`<${Empty}>Nothing waits for you.<//>`}
    ${open.map((question) => html`<${Question} key=${question.id} question=${question} chosen=${question.id === chosen} choose=${() => choose(question.id)} keys=${question.id === chosen ? keys : null}
      root=${rootOf(question)} problem=${question.id === said?.of ? said.error : null} answer=${(decision, more) => answer(question, decision, more)} />`)}
    ${all && data?.filter((one) => one.state !== "pending").map((one) => html`<article key=${one.id}><h2><${State} of=${one.state} /> ${one.tool ?? one.message ?? one.id}
      <span class="dim"> ${clock(one.created)}${one.decided_by ? `, by ${one.decided_by}` : ""}</span></h2></article>`)}
    <${More} shown=${data?.length} total=${page?.total} limit=${limit} most=${1000} more=${setLimit} />
    ${all && html`<h2>Approved in sessions</h2><${Standing} />`}
  <//>`;
}

/** What a session is not asked about again. */
export function Standing() {
  const { data, error, again } = useLoad("/api/approvals/standing", 2000);
  return html`<${Problem} error=${error} />
    <${Table} label="Approved in sessions" rows=${data} none="No session has an approval that stands." columns=${[
      ["tool", (row) => html`${row.tool}${row.arguments && html` <code class="dim">${short(JSON.stringify(row.arguments), 80)}</code>`}`],
      ["covers", (row) => COVERS[row.covers] ?? row.covers], ["session", (row) => row.scope], ["since", (row) => clock(row.created_ms)],
      ["", (row) => me.changes && html`<button class="small" onClick=${() => del(`/api/approvals/standing/${encodeURIComponent(row.id)}`).then(again, again)}>Take back</button>`],
    ]} />`;
}

/** How much a call can do, and what makes it worse, in a few words each. */
const risks = ({ effects: can, scope, tainted }) =>
  [scope === "configuration" ? "changes Toolwright's own configuration" : can && effects(can), tainted?.length > 0 && "takes what an untrusted tool wrote"].filter(Boolean);

/** Arguments as JSON, with what the user named and what untrusted tools wrote marked. */
function Arguments({ of, named = [], tainted = [] }) {
  const step = (name) => `/${String(name).replaceAll("~", "~0").replaceAll("/", "~1")}`;
  const draw = (value, path, indent) => {
    if (value !== null && typeof value === "object" && Object.keys(value).length) {
      const [open, close] = Array.isArray(value) ? "[]" : "{}";
      const members = Object.entries(value).map(([name, member], index, all) => [
        `${indent}  ${Array.isArray(value) ? "" : `${JSON.stringify(name)}: `}`, draw(member, path + step(name), `${indent}  `), index < all.length - 1 ? ",\n" : "\n",
      ]);
      return [`${open}\n`, members, indent + close];
    }
    const text = JSON.stringify(value);
    if (tainted.some((one) => path === one.path || path.startsWith(`${one.path}/`))) return html`<mark class="tainted">${text}<span class="hidden"> came out of an untrusted tool</span></mark>`;
    return named.includes(path) ? html`<mark>${text}<span class="hidden"> was named by the user</span></mark>` : text;
  };
  return html`<pre role="group" tabindex="0" aria-label="Arguments">${draw(of, "", "")}</pre>${named.length > 0 && html`<p class="note"><mark>Marked</mark>: the user named it.</p>`}`;
}

/** What the answers mean, the widest last: key, word, what it covers, and how it is sent. */
const answers = ({ always_covers: covers }, rule) => [
  ["a", "Approve once", "", "approve"],
  ["t", "These arguments", "Not asked again in this session for equal arguments.", "always_these"],
  ...(covers === "this_call" ? [] : [["s", "This session", `Not asked again in this session for ${COVERS[covers]}.`, "always"]]),
  ...(rule ? [["w", "Always", "Not asked again: this rule is written.", "approve", rule]] : []),
];

export function Question({ question, chosen, choose, answer, keys, problem, root }) {
  const [reason, setReason] = useState("");
  const isCall = question.kind === "call";
  const { data } = useLoad(isCall ? `/api/approvals/${encodeURIComponent(question.id)}` : null);
  const { changes, always } = data?.prospect ?? {};
  const box = useRef(null);
  useEffect(() => { if (chosen) box.current?.scrollIntoView({ block: "nearest" }); }, [chosen]);
  const way = [...(root ? [{ agent: root }] : []), ...(question.agents ?? [])];
  const left = question.expires - Date.now();
  const ways = isCall && me.changes ? answers(question, always?.rule && always) : [];
  const deny = () => answer("deny", reason.trim() ? { reason: reason.trim() } : {});
  if (keys && ways.length) keys.current = { ...Object.fromEntries(ways.map(([key, , , decision, rule]) => [key, () => answer(decision, { rule })])), d: deny };
  return html`<article ref=${box} class=${chosen ? "question chosen" : "question"} onClick=${choose} aria-current=${chosen ? "true" : undefined}>
    <h2>${isCall ? plain(question.tool) : `${question.tool ?? "A server"} asks`} ${isCall && risks(question).map((risk) => html`<span key=${risk} class="risk"><span aria-hidden="true">▲</span> ${risk}</span>`)}
      <span class="dim when">${question.principal}, ${left > 0 ? `expires in ${duration(left)}` : "expires now"}</span></h2>
    ${way.length > 0 && html`<ol class="way" aria-label="Path of agents">${way.map((step) => html`<li><strong>${step.agent}</strong> ${step.reason}</li>`)}</ol>`}
    ${question.reason && html`<p class="why">${question.reason}</p>`}
    ${question.untrusted && html`<p class="problem">Untrusted: ${question.untrusted}.</p>`}
    ${question.asker && html`<p>On the wish of ${question.asker}.</p>`}
    ${!isCall ? (me.changes ? html`<${Wants} question=${question} answer=${answer} />` : html`<p>${question.message}</p>`)
      : html`${changes && html`<h3>What it changes</h3><${Diff} text=${changes} label="What it changes" />`}
        ${changes ? html`<details><summary>Arguments</summary><${Arguments} of=${question.arguments} named=${question.named} tainted=${question.tainted} /></details>`
          : html`<${Arguments} of=${question.arguments} named=${question.named} tainted=${question.tainted} />`}
        ${me.changes && html`<div class="answers">${ways.map(([key, word, about, decision, rule]) => html`<button key=${key} class=${key === "a" ? "main" : ""} title=${about} onClick=${() => answer(decision, { rule })}>${word} <kbd>${key}</kbd></button>`)}
          <button class="danger" onClick=${deny}>Deny <kbd>d</kbd></button>
          <label>Reason <input value=${reason} onInput=${(event) => setReason(event.target.value)} placeholder="the model reads it" /></label></div>
          <dl class="reach">${ways.filter(([, , about]) => about).map(([key, word, about, , rule]) => html`<div key=${key}><dt>${word}</dt><dd>${about}
            ${rule && html`<pre role="group" tabindex="0" aria-label="The rule that always writes">${rule.rule}</pre><span>It goes into ${rule.file}, of which a copy is kept. <a href="#/policy">Policy</a> lists it.</span>`}</dd></div>`)}
            ${always?.why && html`<div><dt>Always</dt><dd>No rule is offered: ${always.why}.</dd></div>`}</dl>`}`}
    <${Problem} error=${problem} /></article>`;
}

/** A form of a server, or a page that it wants opened. */
function Wants({ question, answer }) {
  const { message, schema, address: url } = question;
  return html`<p>${message}</p>${url && html`<p>It wants this page opened: ${/^https?:/i.test(url) ? html`<a href=${url} target="_blank" rel="noopener noreferrer">${url}</a>` : html`<code>${url}</code>`}</p>`}
    ${schema ? html`<${Form} schema=${schema} strict of=${`${question.id}-`} label="Send" submit=${(content) => answer("accept", { content })} />`
      : html`<button class="main" onClick=${() => answer("accept")}>Accept</button>`}
    <button class="danger" onClick=${() => answer("decline")}>Decline</button>`;
}

// The inbox: what waits for a person, answered by keyboard.

import { html, useLoad, useState, useEffect, useRef, Page, Problem, Table, Diff, Empty, More, State, clock, duration } from "../ui.js";
import { me, post, del } from "../api.js";
import { effects } from "./tools.js";
import { Form } from "../form.js";

const COVERS = {
  tool: "this tool, in this session", tool_for_asker: "this tool, for this asker", tool_in_workspace: "this tool, in this workspace",
  this_call: "this call with these arguments",
};

/** Sends answers to a question, and says what came of each: a message, or an error where another was first. */
export const answerer = (question, said) => (decision, more = {}) =>
  post(`/api/approvals/${encodeURIComponent(question.id)}`, { decision, ...more })
    .then(() => said({ message: `${question.tool ?? question.id}: ${decision.replace("_", " ")}.` }), (error) => said({ error }));

export function Approvals() {
  const [all, setAll] = useState(false);
  const [limit, setLimit] = useState(50);
  const { data: page, error, again } = useLoad(`/api/approvals?limit=${limit}${all ? "&all=true" : ""}`, 2000);
  const data = page?.questions;
  const [at, setAt] = useState(0);
  const [said, setSaid] = useState(null);
  const open = data?.filter((one) => one.state === "pending") ?? [];
  const index = Math.min(at, Math.max(0, open.length - 1));
  const answer = (question, decision, more) => {
    setSaid(null);
    answerer(question, (result) => { setSaid(result); again(); })(decision, more);
  };
  // A key is for what is drawn, which effects are too late to know.
  const press = useRef(null);
  press.current = (key) => {
    if (!me.changes && key !== "j" && key !== "k") return;
    const question = open[index];
    if (key === "j") setAt(Math.min(index + 1, open.length - 1));
    else if (key === "k") setAt(Math.max(index - 1, 0));
    else if (question?.kind === "call" && key === "a") answer(question, "approve");
    else if (question?.kind === "call" && key === "d") answer(question, "deny");
    else if (question?.kind === "call" && key === "w") answer(question, "always");
    else if (question?.kind === "call" && key === "t") answer(question, "always_these");
  };
  useEffect(() => {
    const key = (event) => event.ctrlKey || event.metaKey || event.altKey || /INPUT|TEXTAREA|SELECT/.test(event.target.tagName) || press.current(event.key);
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  return html`<${Page} title="Approvals" about="Calls that wait for your word, and what servers ask."
      actions=${html`<label class="check"><input type="checkbox" checked=${all} onChange=${() => setAll(!all)} /> Also what is settled</label>`}>
    <${Problem} error=${error} />
    <p role="status" class=${said?.error ? "problem" : "note"}>${said?.error?.message ?? said?.message ?? ""}</p>
    ${data && !open.length && html`<${Empty}>Nothing waits for you.<//>`}
    ${open.map((question, place) => html`<${Question} key=${question.id} question=${question} chosen=${place === index} choose=${() => setAt(place)}
      answer=${(decision, more) => answer(question, decision, more)} />`)}
    ${all && data?.filter((one) => one.state !== "pending").map((one) => html`<article key=${one.id}><h2><${State} of=${one.state} /> ${one.tool ?? one.message ?? one.id}
      <span class="dim"> ${clock(one.created)}${one.decided_by ? `, by ${one.decided_by}` : ""}</span></h2></article>`)}
    <${More} shown=${data?.length} total=${page?.total} limit=${limit} most=${1000} more=${setLimit} />
    ${all && html`<${Standing} />`}
  <//>`;
}

/** What was approved for always. */
function Standing() {
  const { data, error, again } = useLoad("/api/approvals/standing");
  return html`<h2>Approved for always</h2><${Problem} error=${error} />
    <${Table} label="Approved for always" rows=${data} none="Nothing was approved for always." columns=${[
      ["tool", (row) => row.tool], ["covers", (row) => COVERS[row.covers] ?? row.covers ?? row.scope ?? ""], ["since", (row) => clock(row.created_ms)],
      ["", (row) => me.changes && html`<button class="small" onClick=${() => del(`/api/approvals/standing/${encodeURIComponent(row.id)}`).then(again, again)}>Take back</button>`],
    ]} />`;
}

/** How much a call can do, in a word. */
const risk = ({ effects: can, scope, tainted }) => (scope === "configuration" ? "changes Toolwright's own configuration" : tainted?.length ? "works on what an untrusted tool wrote" : can ? effects(can) : "");

/** What an edit changes, where the arguments say what stands in place of what. */
function changed(args) {
  const edits = Array.isArray(args?.edits) ? args.edits : [args];
  const pair = (edit) => [edit?.old_string ?? edit?.old_text ?? edit?.old, edit?.new_string ?? edit?.new_text ?? edit?.new];
  const lines = (text, mark) => text.replace(/\n$/, "").split("\n").map((line) => `${mark}${line}`).join("\n");
  return edits.map(pair).filter(([was, is]) => typeof was === "string" && typeof is === "string").map(([was, is]) => `${lines(was, "-")}\n${lines(is, "+")}`).join("\n@@\n");
}

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
  return html`<pre tabindex="0" aria-label="Arguments">${draw(of, "", "")}</pre>${named.length > 0 && html`<p class="note"><mark>Marked</mark>: the user named it.</p>`}`;
}

/** The tools that a taint names. */
const sources = (from) => (Array.isArray(from) ? from : Object.values(from ?? {}).flat()).map((one) => (typeof one === "string" ? one : one.tool ?? JSON.stringify(one))).join(", ");

export function Question({ question, chosen, choose, answer }) {
  const [reason, setReason] = useState("");
  const box = useRef(null);
  useEffect(() => { if (chosen) box.current?.scrollIntoView({ block: "nearest" }); }, [chosen]);
  const left = question.expires - Date.now();
  const way = question.agents?.length ? html`<ol class="way" aria-label="Path of agents">${question.agents.map((step) => html`<li><strong>${step.agent}</strong> ${step.reason}</li>`)}</ol>` : null;
  return html`<article ref=${box} class=${chosen ? "question chosen" : "question"} onClick=${choose} aria-current=${chosen ? "true" : undefined}>
    <h2>${question.kind === "call" ? question.tool : `${question.tool ?? "A server"} asks`} <span class="dim">${question.principal}, ${left > 0 ? `expires in ${duration(left)}` : "expires now"}</span></h2>
    ${way}
    ${question.reason && html`<p>${question.reason}</p>`}
    ${question.untrusted && html`<p class="problem">Untrusted: ${question.untrusted}.</p>`}
    ${question.asker && html`<p>On the wish of ${question.asker}.</p>`}
    ${question.kind === "call"
      ? html`${risk(question) && html`<p class="risk"><span aria-hidden="true">▲</span> ${risk(question)}</p>`}
        ${question.tainted?.map((one) => html`<p class="bad"><code>${one.path || "the arguments"}</code> came out of ${sources(one.from) || "an untrusted tool"}.</p>`)}
        ${changed(question.arguments) && html`<${Diff} text=${changed(question.arguments)} label="What the edit changes" />`}
        <${Arguments} of=${question.arguments} named=${question.named} tainted=${question.tainted} />
        ${me.changes && html`<div class="answers"><button class="main" onClick=${() => answer("approve")}>Approve once <kbd>a</kbd></button>
          <button onClick=${() => answer("always_these")} title="Not asked again in this session for equal arguments">These arguments <kbd>t</kbd></button>
          ${question.always_covers !== "this_call" && html`<button onClick=${() => answer("always")}>Always <kbd>w</kbd></button>`}
          <button class="danger" onClick=${() => answer("deny", reason.trim() ? { reason: reason.trim() } : {})}>Deny <kbd>d</kbd></button>
          <label>Reason <input value=${reason} onInput=${(event) => setReason(event.target.value)} placeholder="the model reads it" /></label></div>`}
        <p class="note">These arguments: not asked again in this session for equal ones.${question.always_covers !== "this_call" && html` Always: not asked again for ${COVERS[question.always_covers] ?? question.always_covers}.`}</p>`
      : me.changes ? html`<${Wants} question=${question} answer=${answer} />` : html`<p>${question.message}</p>`}
  </article>`;
}

/** A form of a server, or a page that it wants opened. */
function Wants({ question, answer }) {
  const { message, schema, address: url } = question;
  return html`<p>${message}</p>${url && html`<p>It wants this page opened: <code>${url}</code></p>`}
    ${schema ? html`<${Form} schema=${schema} label="Send" submit=${(content) => answer("accept", { content })} />`
      : html`<button class="main" onClick=${() => answer("accept")}>Accept</button>`}
    <button class="danger" onClick=${() => answer("decline")}>Decline</button>`;
}

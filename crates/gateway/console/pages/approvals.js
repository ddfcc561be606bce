// The inbox: what waits for a person, answered by keyboard.

import { html, useLoad, useState, useEffect, useRef, Page, Problem, Json, Empty, State, clock, duration } from "../ui.js";
import { post } from "../api.js";
import { Form } from "../form.js";

const COVERS = {
  tool: "this tool, in this session", tool_for_asker: "this tool, for this asker", tool_in_workspace: "this tool, in this workspace",
  this_call: "this call with these arguments",
};

export function Approvals() {
  const [all, setAll] = useState(false);
  const { data, error, again } = useLoad(`/api/approvals${all ? "?all=true" : ""}`, 2000);
  const [at, setAt] = useState(0);
  const [said, setSaid] = useState(null);
  const open = data?.filter((one) => one.state === "pending") ?? [];
  const index = Math.min(at, Math.max(0, open.length - 1));
  const answer = async (question, decision, more = {}) => {
    setSaid(null);
    try {
      await post(`/api/approvals/${encodeURIComponent(question.id)}`, { decision, ...more });
      setSaid({ message: `${question.tool ?? question.id}: ${decision}.` });
    } catch (problem) {
      // Another page or person may have been first: say so.
      setSaid({ error: problem });
    }
    again();
  };
  // A key is for what is drawn, which effects are too late to know.
  const press = useRef(null);
  press.current = (key) => {
    const question = open[index];
    if (key === "j") setAt(Math.min(index + 1, open.length - 1));
    else if (key === "k") setAt(Math.max(index - 1, 0));
    else if (question?.kind === "call" && key === "a") answer(question, "approve");
    else if (question?.kind === "call" && key === "d") answer(question, "deny");
    else if (question?.kind === "call" && key === "w") answer(question, "always");
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
  <//>`;
}

function Question({ question, chosen, choose, answer }) {
  const [reason, setReason] = useState("");
  const box = useRef(null);
  useEffect(() => { if (chosen) box.current?.scrollIntoView({ block: "nearest" }); }, [chosen]);
  const left = question.expires - Date.now();
  const way = question.agents?.length ? html`<ol class="way" aria-label="Path of agents">${question.agents.map((step) => html`<li><strong>${step.agent}</strong> ${step.reason}</li>`)}</ol>` : null;
  return html`<article ref=${box} class=${chosen ? "question chosen" : "question"} onClick=${choose} aria-current=${chosen ? "true" : undefined}>
    <h2>${question.kind === "call" ? question.tool : "A server asks"} <span class="dim">${question.principal}, ${left > 0 ? `expires in ${duration(left)}` : "expires now"}</span></h2>
    ${way}
    ${question.reason && html`<p>${question.reason}</p>`}
    ${question.tainted && html`<p class="problem">Untrusted: ${question.tainted}.</p>`}
    ${question.asker && html`<p>On the wish of ${question.asker}.</p>`}
    ${question.kind === "call"
      ? html`<${Json} value=${question.arguments} label="Arguments" />
        <div class="answers"><button class="main" onClick=${() => answer("approve")}>Approve once <kbd>a</kbd></button>
          <button onClick=${() => answer("always")}>Always <kbd>w</kbd></button>
          <button class="danger" onClick=${() => answer("deny", reason.trim() ? { reason: reason.trim() } : {})}>Deny <kbd>d</kbd></button>
          <label>Reason <input value=${reason} onInput=${(event) => setReason(event.target.value)} placeholder="the model reads it" /></label></div>
        ${question.always_covers && html`<p class="note">Always means: ${COVERS[question.always_covers] ?? question.always_covers}.</p>`}`
      : html`<${Wants} question=${question} answer=${answer} />`}
  </article>`;
}

/** A form of a server, or a page that it wants opened. */
function Wants({ question, answer }) {
  const { message, schema, url } = question;
  return html`<p>${message}</p>${url && html`<p>It wants this page opened: <code>${url}</code></p>`}
    ${schema ? html`<${Form} schema=${schema} label="Send" submit=${(content) => answer("accept", { content })} />`
      : html`<button class="main" onClick=${() => answer("accept")}>Accept</button>`}
    <button class="danger" onClick=${() => answer("decline")}>Decline</button>`;
}

// The policy: what its rules decided, and an editor that tries a draft on recorded calls before it is saved.

import { html, useLoad, useState, useEffect, Page, Problem, Table, Json, Diff, number, clock, short } from "../ui.js";
import { me, post } from "../api.js";
import { Standing } from "./approvals.js";

const CALLS = [100, 1000, 10_000];
/** Milliseconds without a key before a draft is checked. */
const PAUSE = 300;

/** Milliseconds from one look to the next whether what was saved is in force, and how many looks. */
const LOOK = 1000;
const LOOKS = 10;

/** A draft that is not saved, and the policy that it changes. It stays while another page is shown. */
let unsaved = null;

const selects = ({ effect, reason, index, ...rest }) => Object.entries(rest).map(([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ") || "every call";
const Effect = ({ of }) => html`<span class=${`state ${{ allow: "good", ask: "busy", deny: "bad" }[of]}`}>${of}</span>`;

export function Policy() {
  const [calls, setCalls] = useState(1000);
  const { data, error, again } = useLoad(`/api/policy?calls=${calls}`);
  const [draft, setDraft] = useState(unsaved?.text ?? null);
  const write = (text) => {
    unsaved = text === null ? null : { text, base: unsaved?.base ?? data.base };
    setDraft(text);
  };
  const [tried, setTried] = useState(null);
  const [said, setSaid] = useState(null);
  const text = draft ?? data?.text ?? "";
  useEffect(() => {
    if (draft === null) return undefined;
    const timer = setTimeout(() => post("/api/policy/test", { draft, calls }).then((result) => setTried({ ...result, of: draft }), (problem) => setTried({ problems: [{ line: 0, message: problem.message }], of: draft })), PAUSE);
    return () => clearTimeout(timer);
  }, [draft, calls]);
  const isTried = tried && tried.of === draft;
  const save = () => post("/api/policy/save", { draft, base: unsaved.base }).then((saved) => { setSaid({ saved }); write(null); setTried(null); again(); }, (problem) => setSaid({ error: problem }));
  // The server takes up the file soon after it was written.
  useEffect(() => {
    if (!said?.saved) return undefined;
    let looks = 0;
    const timer = setInterval(() => { again(); if ((looks += 1) >= LOOKS) clearInterval(timer); }, LOOK);
    return () => clearInterval(timer);
  }, [said]);
  const hits = data?.hits;
  return html`<${Page} title="Policy" about=${data && `Profile ${data.profile} decides where no rule does. ${data.file ?? "No file is in use."}`}
      actions=${html`<label>Over the last <select value=${calls} onChange=${(event) => setCalls(Number(event.target.value))}>${CALLS.map((n) => html`<option value=${n}>${number(n)} calls</option>`)}</select></label>`}>
    <${Problem} error=${error} />
    <h2>Rules</h2>
    <${Table} label="Rules" rows=${data && [...data.rules.map((rule, index) => ({ ...rule, index })), { index: data.rules.length, profile: data.profile }]} keyOf=${(row) => row.index} columns=${[
      ["rule", (row) => (row.profile ? "else" : row.index + 1), "slim"], ["effect", (row) => (row.profile ? html`<span class="dim">profile ${row.profile}</span>` : html`<${Effect} of=${row.effect} />`)],
      ["calls", (row) => (row.profile ? "what no rule selects" : html`<code>${selects(row)}</code>`)], ["why", (row) => row.reason ?? ""],
      ["decided", (row) => number(row.profile ? hits.otherwise : hits.rules[row.index]), "n"],
    ]} />
    ${data && html`<p class="note">Over ${number(data.calls)} recorded calls.${data.unknown > 0 && ` ${number(data.unknown)} more cannot be decided again: their tools are gone, or their arguments were not kept.`}</p>`}
    <div class="columns editor"><section><h2>Editor</h2>
      <label for="draft" class="line">The section <code>policy</code> of the configuration, as YAML</label>
      <textarea id="draft" rows="16" spellcheck=${false} readonly=${!me.changes} value=${text} aria-describedby="checks" onInput=${(event) => { setSaid(null); write(event.target.value); }} />
      <div id="checks" aria-live="polite">${!me.changes ? html`<p class="note">This token only reads: it cannot change the policy.</p>` : draft === null ? html`<p class="note">Each change is checked as you type, and tried on the recorded calls. Nothing is written before you save.</p>`
        : !isTried ? html`<p class="note">Checking.</p>`
          : tried.problems.length ? html`<ul class="changes">${tried.problems.map((one) => html`<li class="bad">${one.line > 0 && `line ${one.line}: `}${one.message}${one.remedy && html` <span class="dim">${one.remedy}</span>`}</li>`)}</ul>`
            : html`<p class="good">It can be used. ${number(tried.changed.length)} of ${number(tried.calls)} decisions change.</p>`}</div>
      ${me.changes && html`<div class="answers"><button class="main" disabled=${draft === null || !isTried || tried.problems.length > 0} onClick=${save}>Save</button>
        <button disabled=${draft === null} onClick=${() => { write(null); setTried(null); }}>Discard</button></div>`}
      <div role="status">${said?.error && html`<${Problem} error=${said.error} />`}${said?.saved && html`<p class="note">Written to ${said.saved.file}; the file as it was is ${said.saved.backup}.
        ${!said.saved.in_force && " The project's file has to be approved before it counts: toolwright trust."}</p><${Diff} text=${said.saved.diff} />`}</div></section>
    <section><h2>Decisions that change</h2>
      ${isTried && !tried.problems.length ? html`<${Table} label="Decisions that change" rows=${tried.changed.slice(0, 200).map((row, index) => ({ ...row, index }))} none="No recorded call is decided differently." keyOf=${(row) => row.index} columns=${[
        ["tool", (row) => row.tool], ["was", (row) => html`<${Effect} of=${row.was.effect} /> <span class="dim">${row.was.rule}</span>`],
        ["is", (row) => html`<${Effect} of=${row.is.effect} /> <span class="dim">${row.is.rule}</span>`], ["arguments", (row) => html`<code title=${clock(row.at_ms)}>${short(JSON.stringify(row.arguments), 80)}</code>`],
      ]} />${tried.changed.length > 200 && html`<p class="note">The first 200 of ${number(tried.changed.length)} are shown.</p>`}` : html`<p class="note">They appear here when you change the draft.</p>`}</section></div>
    <h2>Approved in sessions</h2>
    <p class="note">What a person approved for the rest of a session. It comes before the rules that ask, and changes none of them.</p>
    <${Standing} />
  <//>`;
}

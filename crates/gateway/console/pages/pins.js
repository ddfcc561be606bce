// Definitions of others that are pinned: what changed, and whether it is let in.

import { html, useLoad, useState, Page, Problem, Table, Json, Diff, State, Empty, clock } from "../ui.js";
import { me, post } from "../api.js";

const WEIGHT = { danger: "bad", notable: "busy", minor: "dim" };

export function Pins() {
  const { data, error, again } = useLoad("/api/pins", 5000);
  const [all, setAll] = useState(false);
  const [said, setSaid] = useState(null);
  const waiting = data?.filter((pin) => pin.waiting) ?? [];
  const decide = (pin, decision) =>
    post("/api/pins", { provider: pin.provider, tool: pin.tool, hash: pin.waiting.hash, decision })
      .then(() => setSaid({ message: `${pin.provider}/${pin.tool}: ${decision === "approve" ? "approved" : "rejected"}.` }), (problem) => setSaid({ error: problem }))
      .then(again);
  return html`<${Page} title="Pins" about="Definitions of foreign tools are pinned at first use. A changed definition is withheld from models until you approve it."
      actions=${html`<label class="check"><input type="checkbox" checked=${all} onChange=${() => setAll(!all)} /> Also unchanged definitions</label>`}>
    <${Problem} error=${error} />
    <p role="status" class=${said?.error ? "problem" : "note"}>${said?.error?.message ?? said?.message ?? ""}</p>
    ${data && !waiting.length && html`<${Empty}>No definition waits for you.<//>`}
    ${waiting.map((pin) => html`<${Waiting} key=${`${pin.provider}/${pin.tool}`} pin=${pin} decide=${(word) => decide(pin, word)} />`)}
    ${all && html`<${Table} label="Pinned definitions" rows=${data?.filter((pin) => !pin.waiting)} none="Nothing is pinned." keyOf=${(pin) => `${pin.provider}/${pin.tool}`} columns=${[
      ["definition", (pin) => `${pin.provider}/${pin.tool}`], ["state", (pin) => html`<${State} of=${pin.state} />`],
      ["since", (pin) => pin.approved && clock(pin.approved.at_ms)], ["by", (pin) => pin.approved?.by], ["hash", (pin) => html`<code>${pin.approved?.hash.slice(0, 12)}</code>`],
    ]} />`}
  <//>`;
}

function Waiting({ pin, decide }) {
  const { changes = [], approved_definition: was, waiting_definition: is } = pin;
  return html`<article><h2>${pin.provider}/${pin.tool} <${State} of=${pin.state} /> <span class="dim">since ${clock(pin.waiting.at_ms)}</span></h2>
    ${changes.length ? html`<ul class="changes">${changes.map((change) => html`<li><span class=${WEIGHT[change.weight]}>${change.weight}</span> <code>${change.field}</code> ${change.message}</li>`)}</ul>`
      : html`<p>It was never approved. Read what it says of itself.</p>`}
    ${pin.difference ? html`<${Diff} text=${pin.difference} label=${`What changed in ${pin.tool}`} />` : html`<div class="columns">${was && html`<section><h3>Approved</h3><${Json} value=${was} label="Approved definition" /></section>`}
      ${is && html`<section><h3>Waits</h3><${Json} value=${is} label="Definition that waits" /></section>`}</div>`}
    ${me.changes && html`<div class="answers"><button class="main" onClick=${() => decide("approve")}>Approve</button>
      <button class="danger" onClick=${() => decide("reject")}>Reject</button><span class="note">Rejected, it stays withheld.</span></div>`}
  </article>`;
}

// What starts runs by itself: next and last firings.

import { html, useLoad, useState, Page, Problem, Table, State, Empty, Facts, clock } from "../ui.js";
import { me, post } from "../api.js";

export function Triggers() {
  const [firings, setFirings] = useState(5);
  const { data, error, again } = useLoad(`/api/triggers?firings=${firings}`, 5000);
  const [said, setSaid] = useState(null);
  const fire = (trigger) => post(`/api/triggers/${encodeURIComponent(trigger.id)}/fire`)
    .then((firing) => setSaid({ message: `${trigger.id} fires: run ${firing.run}.` }), (problem) => setSaid({ error: problem })).then(again);
  return html`<${Page} title="Triggers" about="Timers, schedules, channels, files and webhooks that start runs.">
    <${Problem} error=${error} />
    <p role="status" class=${said?.error ? "problem" : "note"}>${said?.error?.message ?? said?.message ?? ""}</p>
    ${data && !data.is_run && html`<p class="note">No process runs triggers now.</p>`}
    ${data && !data.triggers.length && html`<${Empty}>There are no triggers: <code>toolwright triggers add</code> adds one.<//>`}
    ${data?.triggers.map((trigger) => html`<article key=${trigger.id}><h2>${trigger.id} <span class="dim">${trigger.type}: ${trigger.fires}</span></h2>
      <p>${trigger.config.prompt}</p>
      <${Facts} of=${[["agent", trigger.config.agent ?? "the default one"], ["of", trigger.principal],
        ["next", trigger.next.length ? html`${trigger.next.slice(0, 2).map((at) => clock(Date.parse(at))).join(", then ")}${trigger.next.length > 2 && html` <span class="dim" title=${trigger.next.map((at) => clock(Date.parse(at))).join(", ")}>and on</span>`}` : "when something happens"]]} />
      <${Table} label=${`Firings of ${trigger.id}`} rows=${trigger.firings} none="It has not fired yet." keyOf=${(firing) => firing.slot}
        href=${(firing) => `#/runs/${encodeURIComponent(firing.run)}`} columns=${[
          ["run", (firing) => firing.run], ["due", (firing) => clock(Date.parse(firing.due))], ["state", (firing) => html`<${State} of=${firing.state} />`], ["error", (firing) => firing.error],
        ]} />
      ${trigger.more_firings && html`<p class="more"><span class="note">The last ${firings} are shown.</span> ${firings < 1000 && html`<button class="small" onClick=${() => setFirings(Math.min(1000, firings * 4))}>More</button>`}</p>`}
      ${me.changes && html`<div class="answers"><button onClick=${() => fire(trigger)}>Fire now</button></div>`}</article>`)}
  <//>`;
}

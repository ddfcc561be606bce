// Agents: those that are defined, those that stay, their mailboxes and memory, and what trees of agents may still use.

import { html, useLoad, useState, Page, Problem, Table, Json, State, Empty, More, Todo, number, money, clock, short } from "../ui.js";

export function Agents({ id }) {
  return id ? html`<${Session} key=${id} id=${id} />` : html`<${List} />`;
}

const limit = (used, most, shown = number) => (most === undefined || most === null ? shown(used) : `${shown(used)} of ${shown(most)}`);

function List() {
  const [shown, setShown] = useState(50);
  const { data, error } = useLoad(`/api/agents?limit=${shown}`, 5000);
  const nodes = data?.trees.flatMap((tree) => tree.agents.map((node) => ({ ...node, tree: tree.run, depth: node.parent ? 1 : 0 })));
  return html`<${Page} title="Agents" about=${data && `The default model is ${data.default_model ?? "not set"}.`}>
    <${Problem} error=${error} />
    <h2>Defined</h2>
    <${Table} label="Agents that are defined" rows=${data?.agents} none="No agent is defined: toolwright agents new writes a first one." href=${(row) => `#/chat/${encodeURIComponent(row.name)}`} keyOf=${(row) => row.name} columns=${[
      ["agent", (row) => row.name], ["when to use it", (row) => html`<span class="short">${row.description}</span>`], ["model", (row) => row.model ?? "default"],
      ["tools", (row) => (row.tools ? row.tools.join(", ") || "none" : "all")], ["policy", (row) => row.policy ?? ""],
      ["limits", (row) => Object.entries(row.limits ?? {}).map(([name, value]) => `${name} ${name === "cost" ? money(value) : typeof value === "number" ? number(value) : value}`).join(", ")],
    ]} />
    <h2>Members of groups</h2>
    <${Table} label="Members of groups" rows=${data?.members} none="No group has members." href=${(row) => `#/agents/${encodeURIComponent(row.session)}`} columns=${[
      ["member", (row) => row.name], ["agent", (row) => row.agent || "default"], ["state", (row) => html`<${State} of=${row.state === "started" ? "running" : row.state} />`],
      ["waiting messages", (row) => number(row.waiting), "n"], ["since", (row) => clock(Date.parse(row.created))],
    ]} />
    <h2>Mailboxes and memory</h2>
    <${Table} label="Mailboxes and memory" rows=${data?.mailboxes} none="Nobody has written a message or kept a value." keyOf=${(row) => row.session} href=${(row) => `#/agents/${encodeURIComponent(row.session)}`} columns=${[
      ["session or channel", (row) => named(row.session, data.members)], ["messages", (row) => number(row.messages), "n"], ["values", (row) => number(row.values), "n"],
      ["of", (row) => row.principal], ["last written", (row) => clock(row.last_ms)],
    ]} />
    <${More} shown=${data?.mailboxes.length} total=${data?.mailboxes_total} limit=${shown} most=${1000} more=${setShown} />
    <h2>Budgets of runs</h2>
    <${Table} label="Budgets of runs" rows=${nodes} none="No run yet." href=${(row) => `#/agents/${encodeURIComponent(row.run)}`} keyOf=${(row) => row.run} columns=${[
      ["run", (row) => `${row.depth ? "· " : ""}${row.name || row.run}`], ["state", (row) => html`<${State} of=${row.live ? "running" : "done"} />`],
      ["tokens", (row) => limit(row.spent.tokens, row.limits.tokens), "n"], ["cost", (row) => limit(row.spent.cost_usd, row.limits.cost, money), "n"],
      ["turns", (row) => row.limits.turns ?? "", "n"], ["until", (row) => row.until_ms && clock(row.until_ms)],
    ]} />
    <${More} shown=${data?.trees.length} total=${data?.total} limit=${shown} most=${1000} more=${setShown} />
  <//>`;
}

/** A session in words, where it is a channel or that of a member. */
const named = (session, members) => {
  const [, , , channel] = session.split("/");
  if (session.startsWith("channel/") && channel) return `channel ${channel}`;
  const member = members.find((one) => one.session === session);
  return member ? `mailbox of ${member.name}` : session;
};

function Session({ id }) {
  const [after, setAfter] = useState(0);
  const { data, error } = useLoad(`/api/sessions/${encodeURIComponent(id)}?after=${after}`, 3000);
  if (!data) return html`<${Page} title=${id}><${Problem} error=${error} />${!error && html`<${Empty}>Loading.<//>`}<//>`;
  const values = data.values && Object.keys(data.values).length > 0;
  return html`<${Page} title=${id} about="The mailbox and the memory of a session." actions=${html`<a href="#/agents">All agents</a> ${!id.startsWith("channel/") && html`<a href=${`#/runs/${encodeURIComponent(id)}`}>Its run</a>`}`}>
    <${Todo} items=${data.todo} />
    <h2>Mailbox</h2>
    <${Table} label="Messages" rows=${data.messages} none="No message waits." keyOf=${(row) => row.seq} columns=${[
      ["when", (row) => clock(row.at_ms)], ["from", (row) => row.from], ["about", (row) => `${row.kind} ${row.subject}`], ["says", (row) => short(row.text)],
    ]} />
    ${(after > 0 || data.next) && html`<p class="more">${after > 0 && html`<button class="small" onClick=${() => setAfter(0)}>From the beginning</button>`} ${data.next && html`<button class="small" onClick=${() => setAfter(data.next)}>Next messages</button>`}</p>`}
    <h2>Memory</h2>${values ? html`<${Json} value=${data.values} label="Values of the session" />` : html`<p class="note">It keeps nothing yet.</p>`}
  <//>`;
}

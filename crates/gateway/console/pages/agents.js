// Agents: those that are defined, those that stay, their mailboxes and memory, and what trees of agents may still use.

import { html, useLoad, Page, Problem, Table, Json, State, Empty, Todo, number, money, clock, short } from "../ui.js";

export function Agents({ id }) {
  return id ? html`<${Session} key=${id} id=${id} />` : html`<${List} />`;
}

const limit = (used, most, shown = number) => (most === undefined || most === null ? shown(used) : `${shown(used)} of ${shown(most)}`);

function List() {
  const { data, error } = useLoad("/api/agents", 5000);
  const nodes = data?.trees.flatMap((tree) => tree.agents.map((node) => ({ ...node, tree: tree.run, depth: node.parent ? 1 : 0 })));
  return html`<${Page} title="Agents" about=${data && `The default model is ${data.default_model ?? "not set"}.`}>
    <${Problem} error=${error} />
    <h2>Defined</h2>
    <${Table} label="Agents that are defined" rows=${data?.agents} none="No agent is defined: toolwright agents new writes a first one." href=${(row) => `#/chat/${encodeURIComponent(row.name)}`} keyOf=${(row) => row.name} columns=${[
      ["agent", (row) => row.name], ["when to use it", (row) => html`<span class="short">${row.description}</span>`], ["model", (row) => row.model ?? "default"],
      ["tools", (row) => (row.tools ? row.tools.join(", ") || "none" : "all")], ["policy", (row) => row.policy ?? ""],
      ["limits", (row) => Object.entries(row.limits ?? {}).map(([name, value]) => `${name} ${value}`).join(", ")],
    ]} />
    <h2>Members of groups</h2>
    <${Table} label="Members of groups" rows=${data?.members} none="No agent stays: a group has no members." href=${(row) => `#/agents/${encodeURIComponent(row.session)}`} columns=${[
      ["member", (row) => row.name], ["agent", (row) => row.agent || "default"], ["state", (row) => html`<${State} of=${row.state === "started" ? "running" : row.state} />`],
      ["waiting messages", (row) => number(row.waiting), "n"], ["since", (row) => clock(Date.parse(row.created))],
    ]} />
    <h2>Budgets of the last runs</h2>
    <${Table} label="Budgets of runs" rows=${nodes} none="No run yet." href=${(row) => `#/agents/${encodeURIComponent(row.run)}`} keyOf=${(row) => row.run} columns=${[
      ["run", (row) => `${row.depth ? "· " : ""}${row.name || row.run}`], ["state", (row) => html`<${State} of=${row.live ? "running" : "done"} />`],
      ["tokens", (row) => limit(row.spent.tokens, row.limits.tokens), "n"], ["cost", (row) => limit(row.spent.cost_usd, row.limits.cost, money), "n"],
      ["turns", (row) => row.limits.turns ?? "", "n"], ["until", (row) => row.until_ms && clock(row.until_ms)],
    ]} />
  <//>`;
}

function Session({ id }) {
  const { data, error } = useLoad(`/api/sessions/${encodeURIComponent(id)}`, 3000);
  if (!data) return html`<${Page} title=${id}><${Problem} error=${error} />${!error && html`<${Empty}>Loading.<//>`}<//>`;
  const values = data.values && Object.keys(data.values).length > 0;
  return html`<${Page} title=${id} about="The mailbox of a session, and what it keeps." actions=${html`<a href="#/agents">All agents</a> <a href=${`#/runs/${encodeURIComponent(id)}`}>Its run</a>`}>
    <${Todo} items=${data.todo} />
    <h2>Mailbox</h2>
    <${Table} label="Messages" rows=${data.messages} none="No message waits." keyOf=${(row) => row.seq} columns=${[
      ["when", (row) => clock(row.at_ms)], ["from", (row) => row.from], ["about", (row) => `${row.kind} ${row.subject}`], ["says", (row) => short(row.text)],
    ]} />
    <h2>Memory</h2>${values ? html`<${Json} value=${data.values} label="Values of the session" />` : html`<p class="note">It keeps nothing yet.</p>`}
  <//>`;
}

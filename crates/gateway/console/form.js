// A form made from a JSON Schema. What a field cannot express is written as JSON.

import { html, useState } from "./ui.js";

const typeOf = (schema) => {
  const type = Array.isArray(schema?.type) ? schema.type.find((one) => one !== "null") : schema?.type;
  if (schema?.enum?.every((one) => typeof one !== "object")) return "enum";
  return ["string", "number", "integer", "boolean"].includes(type) ? type : "json";
};

/** What stands in a field at first. */
const initial = (schema) => {
  if (schema?.default === undefined) return "";
  return typeof schema.default === "string" ? schema.default : JSON.stringify(schema.default);
};

/** Reads the fields: arguments, or errors by field. Fields without content are left out. */
export function read(schema, fields) {
  const [values, errors] = [{}, {}];
  for (const [name, property] of Object.entries(schema?.properties ?? {})) {
    const text = fields[name] ?? initial(property);
    const needed = schema.required?.includes(name);
    if (text === "") {
      if (needed && typeOf(property) === "string") values[name] = "";
      else if (needed) errors[name] = "This is required.";
      continue;
    }
    try {
      values[name] = parse(property, text);
    } catch (error) {
      errors[name] = error.message;
    }
  }
  return { values, errors };
}

function parse(schema, text) {
  switch (typeOf(schema)) {
    case "string": return text;
    case "enum": return schema.enum.find((one) => String(one) === text) ?? text;
    case "boolean": return text === "true";
    case "number":
    case "integer": {
      const value = Number(text);
      if (!Number.isFinite(value)) throw new Error("This is no number.");
      return value;
    }
    default:
      try { return JSON.parse(text); } catch (error) { throw new Error(`This is no JSON: ${error.message}`); }
  }
}

export function Form({ schema, busy, submit, label = "Run", values: given = {} }) {
  const [fields, set] = useState(given);
  const [errors, setErrors] = useState({});
  const properties = Object.entries(schema?.properties ?? {});
  const send = (event) => {
    event.preventDefault();
    const result = read(schema, fields);
    setErrors(result.errors);
    if (!Object.keys(result.errors).length) submit(result.values);
  };
  return html`<form class="fields" onSubmit=${send}>
    ${properties.length === 0 && html`<p>It takes no arguments.</p>`}
    ${properties.map(([name, property]) => html`<${Field} key=${name} name=${name} schema=${property} error=${errors[name]}
      needed=${schema.required?.includes(name)} value=${fields[name] ?? initial(property)}
      change=${(value) => set((old) => ({ ...old, [name]: value }))} />`)}
    <button class="main" disabled=${busy}>${label}</button>
  </form>`;
}

/** What a field takes, where its schema bounds it. */
const bounds = ({ minimum, maximum, maxLength }) => (minimum !== undefined && maximum !== undefined ? `From ${minimum} to ${maximum}.`
  : minimum !== undefined ? `At least ${minimum}.` : maximum !== undefined ? `At most ${maximum}.` : maxLength ? `At most ${maxLength} characters.` : "");

function Field({ name, schema, needed, value, error, change }) {
  const id = `field-${name}`;
  const kind = typeOf(schema);
  const common = {
    id, name, value, "aria-describedby": `${id}-about`, "aria-invalid": error ? "true" : undefined,
    onInput: (event) => change(event.target.value),
  };
  const options = kind === "boolean" ? ["true", "false"] : schema.enum?.map(String);
  const long = kind === "json" || (schema.maxLength ?? 0) > 200 || /content|text|body|prompt|code|query|command/i.test(name);
  const input = options
    ? html`<select ...${common}><option value="">${needed ? "choose" : "not set"}</option>
        ${options.map((one) => html`<option value=${one}>${one}</option>`)}</select>`
    : long
      ? html`<textarea ...${common} rows=${kind === "json" ? 4 : 2} spellcheck=${false} />`
      : html`<input ...${common} type=${kind === "string" ? "text" : "number"} step=${kind === "integer" ? 1 : "any"} />`;
  return html`<div class="field"><label for=${id}>${name}${needed && html` <span class="needed">required</span>`}</label>${input}
    <p id=${`${id}-about`} class="about">${error && html`<strong class="bad">${error} </strong>`}${schema.description ?? ""}
      ${kind === "json" ? " (JSON)" : ""} ${bounds(schema)}</p></div>`;
}

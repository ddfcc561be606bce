// A form made from a JSON Schema. What a field cannot express is written as JSON.

import { html, useState } from "./ui.js";

const isPlain = (value) => value !== undefined && typeof value !== "object";

/** The values of which one is chosen, each with its title; nothing where the schema lists none. */
function choices(schema) {
  if (schema?.enum?.every(isPlain)) return schema.enum.map((value, index) => [value, schema.enumNames?.[index] ?? String(value)]);
  const titled = schema?.oneOf ?? schema?.anyOf;
  return titled?.length && titled.every((one) => isPlain(one.const)) ? titled.map((one) => [one.const, one.title ?? String(one.const)]) : null;
}

const typeOf = (schema) => {
  const type = Array.isArray(schema?.type) ? schema.type.find((one) => one !== "null") : schema?.type;
  if (choices(schema)) return "enum";
  if (type === "array" && choices(schema.items)) return "set";
  return ["string", "number", "integer", "boolean"].includes(type) ? type : "json";
};

/** What a browser calls the formats that it checks. */
const FORMATS = { email: "email", uri: "url", url: "url", date: "date" };

/** What stands in a field at first. */
const initial = (schema) => {
  if (typeOf(schema) === "set") return schema.default ?? [];
  if (schema?.default === undefined) return "";
  return typeof schema.default === "string" ? schema.default : JSON.stringify(schema.default);
};

/**
 * Reads the fields: arguments, or errors by field. Fields without content are left out. A text that is required may be empty,
 * unless the form is `strict`.
 */
export function read(schema, fields, strict = false) {
  const [values, errors] = [{}, {}];
  for (const [name, property] of Object.entries(schema?.properties ?? {})) {
    const text = fields[name] ?? initial(property);
    const needed = schema.required?.includes(name);
    if (text.length === 0) {
      if (needed && typeOf(property) === "set" && !property.minItems) values[name] = [];
      else if (needed && typeOf(property) === "string" && !strict) values[name] = "";
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
    case "string":
      if (text.length < (schema.minLength ?? 0)) throw new Error(`This needs ${schema.minLength} characters or more.`);
      if (text.length > (schema.maxLength ?? Infinity)) throw new Error(`This takes ${schema.maxLength} characters at most.`);
      return text;
    case "enum": return choices(schema).find(([value]) => String(value) === text)?.[0] ?? text;
    case "set":
      if (text.length < (schema.minItems ?? 0)) throw new Error(`Choose ${schema.minItems} or more.`);
      if (text.length > (schema.maxItems ?? Infinity)) throw new Error(`Choose ${schema.maxItems} at most.`);
      return text;
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

/** `strict` is the form of a server: a person reads its titles. `of` tells its fields from those of another form. */
export function Form({ schema, busy, submit, label = "Run", strict = false, of = "" }) {
  const [fields, set] = useState({});
  const [errors, setErrors] = useState({});
  const properties = Object.entries(schema?.properties ?? {});
  const send = (event) => {
    event.preventDefault();
    const result = read(schema, fields, strict);
    setErrors(result.errors);
    const [wrong] = Object.keys(result.errors);
    if (wrong === undefined) submit(result.values);
    else document.getElementById(`field-${of}${wrong}`)?.focus();
  };
  return html`<form class="fields" onSubmit=${send}>
    ${properties.length === 0 && html`<p>It takes no arguments.</p>`}
    ${properties.map(([name, property]) => html`<${Field} key=${name} id=${`field-${of}${name}`} name=${name} title=${strict && property.title ? property.title : name} schema=${property} error=${errors[name]}
      needed=${schema.required?.includes(name)} value=${fields[name] ?? initial(property)}
      change=${(value) => set((old) => ({ ...old, [name]: value }))} />`)}
    <button class="main" disabled=${busy}>${label}</button>
  </form>`;
}

/** What a field takes, where its schema bounds it. */
const bounds = ({ minimum, maximum, maxLength, format }) => (format === "date-time" ? "A date and time, as 2026-01-31T09:00:00Z." : minimum !== undefined && maximum !== undefined ? `From ${minimum} to ${maximum}.`
  : minimum !== undefined ? `At least ${minimum}.` : maximum !== undefined ? `At most ${maximum}.` : maxLength ? `At most ${maxLength} characters.` : "");

function Field({ id, name, title, schema, needed, value, error, change }) {
  const kind = typeOf(schema);
  const common = {
    id, name, value, "aria-describedby": `${id}-about`, "aria-invalid": error ? "true" : undefined,
    onInput: (event) => change(event.target.value),
  };
  const options = kind === "boolean" ? [["true", "true"], ["false", "false"]] : choices(schema);
  const long = kind === "json" || (schema.maxLength ?? 0) > 200 || (!schema.format && /content|text|body|prompt|code|query|command/i.test(name));
  const head = html`${title}${needed && html` <span class="needed">required</span>`}`;
  const about = html`<p id=${`${id}-about`} class="about">${error && html`<strong class="bad">${error} </strong>`}${schema.description ?? ""}
      ${kind === "json" ? " (JSON)" : ""} ${bounds(schema)}</p>`;
  if (kind === "set") {
    const put = (one, isIn) => change(choices(schema.items).map(([item]) => item).filter((item) => (item === one ? isIn : value.includes(item))));
    return html`<fieldset id=${id} tabindex="-1" class="field" aria-describedby=${`${id}-about`}><legend>${head}</legend>${choices(schema.items).map(([one, says]) => html`<label class="check" key=${one}>
      <input type="checkbox" checked=${value.includes(one)} onChange=${(event) => put(one, event.target.checked)} /> ${says}</label>`)}${about}</fieldset>`;
  }
  const input = options
    ? html`<select ...${common}><option value="">${needed ? "choose" : "not set"}</option>
        ${options.map(([one, says]) => html`<option value=${String(one)}>${says}</option>`)}</select>`
    : long
      ? html`<textarea ...${common} rows=${kind === "json" ? 4 : 2} spellcheck=${false} />`
      : html`<input ...${common} type=${kind === "string" ? (FORMATS[schema.format] ?? "text") : "number"} step=${kind === "integer" ? 1 : "any"} />`;
  return html`<div class="field"><label for=${id}>${head}</label>${input}${about}</div>`;
}

// @ts-check
// Fields for a value that a JSON Schema describes. What has no simple field is written as JSON.

import { Component, Grows, html } from "./view.js";

const SIMPLE = new Set(["string", "number", "integer", "boolean"]);

/**
 * The fields for a value of a JSON Schema, or one of the options if there are any. `set` gets the
 * value, or undefined while there is none.
 */
export function Answer({ id, schema, options, set }) {
  const choices = options ?? schema.enum;
  if (choices) {
    const names = choices.map((each) => (typeof each === "string" ? each : JSON.stringify(each)));
    return html`<label for=${id}>Answer
      <select id=${id} onChange=${(event) => set(choices[event.target.selectedIndex - 1])}>
        <option value="">choose one</option>
        ${names.map((each) => html`<option>${each}</option>`)}
      </select></label>`;
  }
  const fields = Object.entries(schema.properties ?? {});
  if (schema.type === "object" && fields.length && fields.every(([, each]) => SIMPLE.has(each.type))) {
    return html`<${Fields} id=${id} fields=${fields} required=${schema.required ?? []} set=${set} />`;
  }
  if (SIMPLE.has(schema.type)) return html`<${Field} id=${id} name="Answer" schema=${schema} set=${set} />`;
  return html`<label for=${id} class="tall">Answer, as JSON
    <textarea id=${id} rows="4" spellcheck="false" onInput=${(event) => set(parsed(event.target.value))}></textarea></label>`;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function Field({ id, name, schema, set, required = true }) {
  const about = schema.description ?? "";
  const hint = about && html`<span class="dim">${about}</span>`;
  if (schema.enum) {
    return html`<label for=${id}>${name}
      <select id=${id} onChange=${(event) => set(schema.enum[event.target.selectedIndex - 1])}>
        <option value="">choose one</option>
        ${schema.enum.map((each) => html`<option>${String(each)}</option>`)}
      </select>${hint}</label>`;
  }
  if (schema.type === "boolean") {
    return html`<label for=${id}>${name}
      <select id=${id} onChange=${(event) => set([undefined, true, false][event.target.selectedIndex])}>
        <option>choose one</option><option>yes</option><option>no</option>
      </select>${hint}</label>`;
  }
  if (schema.type === "string") {
    return html`<label for=${id}>${name}<${Grows} id=${id} required=${required} onInput=${(event) => set(event.target.value)} />${hint}</label>`;
  }
  const read = (text) => (text === "" ? undefined : Number(text));
  return html`<label for=${id}>${name}
    <input id=${id} type="number" step=${schema.type === "number" ? "any" : "1"} required=${required}
      onInput=${(event) => set(read(event.target.value))} />${hint}</label>`;
}

class Fields extends Component {
  componentDidMount() {
    if (!this.props.required.length) this.props.set({}); // nothing need be filled in
  }

  change(name, value) {
    this.values = { ...this.values, [name]: value };
    const isWhole = this.props.required.every((each) => this.values[each] !== undefined);
    this.props.set(isWhole ? this.values : undefined);
  }

  render({ id, fields, required }) {
    return fields.map(
      ([name, schema], index) => html`<${Field} id=${`${id}-${index}`} name=${name} schema=${schema}
        required=${required.includes(name)} set=${(value) => this.change(name, value)} />`,
    );
  }
}

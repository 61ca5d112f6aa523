// @ts-check
// The screen of the API: openapi.json with each request, its parameters and answers, and every schema.

import { get } from "../api.js";
import { make, put } from "../text.js";
import { Component, Said, html } from "./view.js";

const METHODS = ["get", "post", "put", "patch", "delete"];

// The headings of tags that are abbreviations.
const TITLES = { adk: "ADK", agui: "AG-UI" };

const nameOf = (reference) => reference.split("/").at(-1);

function resolved(document, value) {
  if (!value?.$ref) return value;
  return value.$ref
    .slice(2)
    .split("/")
    .reduce((found, token) => found?.[token], document);
}

/** Return an element with a text in which code is between backticks. */
function said(tag, className, text) {
  const element = make(tag, className);
  text.split("`").forEach((part, at) => (at % 2 ? element.append(make("code", "", part)) : put(element, part)));
  return element;
}

/** Return an element that describes a schema; a reference becomes a link to the schema below. */
function typeOf(schema) {
  const span = make("span");
  const words = (schemas, between) =>
    schemas.forEach((each, index) => span.append(index ? between : "", typeOf(each)));
  if (schema === true || schema === undefined || Object.keys(schema).length === 0) {
    span.append("anything");
  } else if (schema.$ref) {
    const link = make("a", "", nameOf(schema.$ref));
    link.href = `#schema-${nameOf(schema.$ref)}`;
    span.append(link);
  } else if (schema.enum) {
    span.append(schema.enum.map((each) => JSON.stringify(each)).join(" | "));
  } else if ("const" in schema) {
    span.append(JSON.stringify(schema.const));
  } else if (schema.anyOf ?? schema.oneOf) {
    words(schema.anyOf ?? schema.oneOf, " | ");
  } else if (schema.type === "array") {
    span.append("list of ", typeOf(schema.items));
  } else {
    span.append([schema.type ?? "object"].flat().join(" | "));
    if (schema.format) span.append(` (${schema.format})`);
  }
  return span;
}

function table(heads, rows) {
  const scroll = make("div", "scroll");
  const [made, head, names] = [make("table"), make("thead"), make("tr")];
  names.append(...heads.map((each) => make("th", "", each)));
  head.append(names);
  made.append(head);
  for (const cells of rows) {
    const row = make("tr");
    for (const cell of cells) {
      const data = make("td");
      data.append(cell ?? "");
      row.append(data);
    }
    made.append(row);
  }
  scroll.append(made);
  return scroll;
}

function fields(schema) {
  const required = new Set(schema.required ?? []);
  return Object.entries(schema.properties ?? {}).map(([name, field]) => [
    name,
    typeOf(field),
    required.has(name) ? "required" : "",
    said("span", "", field.description ?? ""),
  ]);
}

function schemaOf(schema) {
  if (!schema?.properties) return typeOf(schema);
  return table(["field", "type", "", ""], fields(schema));
}

function contents(content) {
  const parts = make("span");
  Object.entries(content ?? {}).forEach(([type, { schema }], index) => {
    parts.append(index ? ", " : "", make("code", "", type), " ", schemaOf(schema));
  });
  return parts;
}

function needs(operation) {
  if (!operation.security?.length) return "Nobody is asked who they are.";
  const scopes = operation.security[0].bearer ?? [];
  return scopes.length ? `Needs the scope ${scopes.join(", ")}.` : "Needs any token.";
}

/** Return an element with a path. The browser may break the line after each slash. */
function pathOf(path) {
  const span = make("span", "path");
  path.split(/(?<=\/)/).forEach((each) => span.append(each, make("wbr")));
  return span;
}

function request(document, path, method, operation) {
  const details = make("details", "doc");
  details.id = operation.operationId;
  const summary = make("summary");
  summary.append(
    make("span", "method", method.toUpperCase()),
    pathOf(path),
    " ",
    said("span", "dim", operation.summary ?? ""),
  );
  details.append(summary, said("p", "dim", operation.description ?? ""), make("p", "", needs(operation)));
  const parameters = (operation.parameters ?? []).map((each) => resolved(document, each));
  if (parameters.length) {
    details.append(
      make("h4", "", "Parameters"),
      table(
        ["name", "in", "type", ""],
        parameters.map((each) => [each.name, each.in, typeOf(each.schema), said("span", "", each.description ?? "")]),
      ),
    );
  }
  if (operation.requestBody) {
    details.append(make("h4", "", "Body"), contents(operation.requestBody.content));
  }
  details.append(
    make("h4", "", "Answers"),
    table(
      ["status", "", ""],
      Object.entries(operation.responses).map(([status, given]) => {
        const answer = resolved(document, given);
        return [status, said("span", "", answer.description ?? ""), contents(answer.content)];
      }),
    ),
  );
  return details;
}

/** Put the document into the page. It has thousands of elements and never changes. */
function show(page, told) {
  const tags = new Map();
  for (const [path, item] of Object.entries(told.paths)) {
    for (const method of METHODS.filter((each) => item[each])) {
      const tag = item[method].tags?.[0] ?? "other";
      if (!tags.has(tag)) tags.set(tag, []);
      tags.get(tag).push(request(told, path, method, item[method]));
    }
  }
  for (const [tag, requests] of tags) {
    const section = make("section");
    section.append(make("h2", "", TITLES[tag] ?? tag), ...requests);
    page.append(section);
  }
  const section = make("section");
  section.append(make("h2", "", "Schemas"));
  for (const [name, schema] of Object.entries(told.components.schemas)) {
    const details = make("details", "doc");
    details.id = `schema-${name}`;
    details.append(
      make("summary", "path", name),
      said("p", "dim", schema.description ?? ""),
      schemaOf(schema),
    );
    section.append(details);
  }
  page.append(section);
}

function openNamed() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named instanceof HTMLDetailsElement) {
    named.open = true;
    named.scrollIntoView();
  }
}

/** Show what has these words. Return whether anything has. */
function filter(page, text) {
  const words = text.toLowerCase().split(/\s+/u).filter(Boolean);
  let isFound = false;
  for (const section of page.querySelectorAll("section")) {
    let any = false;
    for (const details of section.querySelectorAll("details")) {
      const said = details.querySelector("summary").textContent.toLowerCase();
      details.hidden = !words.every((word) => said.includes(word));
      any ||= !details.hidden;
    }
    section.hidden = !any;
    isFound ||= any;
  }
  return isFound;
}

/** The element that `show` has filled, which is drawn once. */
class Operations extends Component {
  shouldComponentUpdate() {
    return false;
  }

  componentDidMount() {
    show(this.base, this.props.told);
    openNamed();
    addEventListener("hashchange", openNamed);
  }

  componentWillUnmount() {
    removeEventListener("hashchange", openNamed);
  }

  render() {
    return html`<div id="operations"></div>`;
  }
}

export class Docs extends Component {
  constructor() {
    super();
    this.state = { told: null, error: null, isFound: true };
  }

  componentDidMount() {
    get("/openapi.json").then(
      (told) => this.setState({ told }),
      (error) => this.setState({ error: error.message }),
    );
  }

  render(_, { told, error, isFound }) {
    return html`<main class="docs">
      <div class="bar">
        <h1 tabindex="-1">The HTTP API</h1>
        <label for="filter">Find <input id="filter" type="search" placeholder="a path, a method or a word" autocomplete="off"
          onInput=${(event) => this.setState({ isFound: filter(this.base, event.target.value) })} /></label>
        <a href="/openapi.json">openapi.json</a>
      </div>
      ${error && html`<p class="notice" role="alert">openapi.json cannot be read: ${error}</p>`}
      <div role="status">${!isFound && html`<p class="empty">Nothing here has all of these words. What is searched is the method, the path and the summary of each request, and the names of schemas.</p>`}</div>
      ${told && html`<p class="lead"><${Said} text=${told.info.description} /></p>
        <${Operations} told=${told} />`}
    </main>`;
  }
}

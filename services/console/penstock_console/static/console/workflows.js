// @ts-check
// The screens of workflows: all by name, and one with its versions, its steps and a start.

import { get, post } from "../api.js";
import { Answer } from "./form.js";
import { Graph } from "./graph.js";
import { go, runPlace } from "./place.js";
import { Component, Notice, Said, Time, Tree, html } from "./view.js";

const path = (name) => `/v1/workflows/${encodeURIComponent(name)}`;
const place = (name) => `/console/workflows/${encodeURIComponent(name)}`;

export class Workflows extends Component {
  constructor() {
    super();
    this.state = { workflows: null, next: null, error: null };
  }

  componentDidMount() {
    this.read(null);
  }

  async read(after) {
    try {
      const { workflows, next } = await get(`/v1/workflows${after ? `?${new URLSearchParams({ after })}` : ""}`);
      this.setState({ workflows: [...(after ? this.state.workflows : []), ...workflows], next });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  render(_, { workflows, next, error }) {
    return html`<main>
      <div class="bar"><h1 tabindex="-1">Workflows</h1></div>
      <${Notice} text=${error} />
      ${workflows?.length > 0 && html`<table>
        <thead><tr><th scope="col">Workflow</th><th scope="col" class="wide">About</th><th scope="col">Version</th><th scope="col" class="wide">Changed</th></tr></thead>
        <tbody>
          ${workflows.map((each) => html`<tr key=${each.name}>
            <td><a href=${place(each.name)}>${each.name}</a>${each.retired && html` <span class="dim">retired</span>`}</td>
            <td class="name wide">${each.description ?? each.title ?? ""}</td>
            <td data-label="version">${each.version}</td>
            <td class="wide"><${Time} at=${each.updated_at} /></td>
          </tr>`)}
        </tbody>
      </table>`}
      ${workflows?.length === 0 && html`<div class="empty">
        <p>There are no workflows yet.</p>
        <p>Write one (docs/workflows.md), then: <code>penstock workflow apply FILE</code></p>
      </div>`}
      ${next && html`<p class="more"><button type="button" class="quiet" onClick=${() => this.read(next)}>More</button></p>`}
      <${Check} />
    </main>`;
  }
}

/** Checks a definition without storing it, and marks the lines with mistakes. */
class Check extends Component {
  constructor() {
    super();
    this.state = { text: "", said: null, mistakes: [] };
  }

  async check(event) {
    event.preventDefault();
    try {
      const found = await post("/v1/workflows/validate", this.state.text, "application/yaml");
      this.setState({ said: `Version ${found.version} of ${found.name} has no mistakes: ${found.steps.join(", ")}.`, mistakes: [] });
    } catch (error) {
      this.setState({ said: error.errors ? null : error.message, mistakes: error.errors ?? [] });
    }
  }

  render(_, { text, said, mistakes }) {
    const wrong = new Map();
    for (const each of mistakes) wrong.set(each.line, [...(wrong.get(each.line) ?? []), each]);
    return html`<details class="card check">
      <summary>Check a definition</summary>
      <form class="start" onSubmit=${(event) => this.check(event)}>
        <label for="definition" class="tall">Definition, as YAML or JSON; it is not stored
          <textarea id="definition" rows="12" spellcheck="false" required value=${text}
            onInput=${(event) => this.setState({ text: event.target.value, said: null, mistakes: [] })}></textarea></label>
        <button type="submit">Check</button>
        <p role="status">${said}</p>
        ${mistakes.length > 0 && html`<div role="alert"><p class="bad">${String(mistakes.length)} ${mistakes.length === 1 ? "mistake" : "mistakes"}</p>
          <ol class="source">
            ${text.split("\n").map((line, index) => html`<li class=${wrong.has(index + 1) ? "is-wrong" : ""}><code>${line || " "}</code>
              ${(wrong.get(index + 1) ?? []).map((each) => html`<span class="bad">${each.field}: <${Said} text=${each.message} /></span>`)}</li>`)}
          </ol>
          ${(wrong.get(undefined) ?? []).map((each) => html`<p class="bad">${each.field}: <${Said} text=${each.message} /></p>`)}</div>`}
      </form>
    </details>`;
  }
}

export class Workflow extends Component {
  constructor() {
    super();
    this.state = { version: null, versions: [], input: undefined, error: null, isBusy: false };
  }

  componentDidMount() {
    this.read();
  }

  componentDidUpdate(before) {
    if (before.name !== this.props.name || before.search !== this.props.search) this.read();
  }

  async read() {
    const { name, search } = this.props;
    const wanted = new URLSearchParams(search).get("version");
    const isWanted = () => this.props.name === name && this.props.search === search;
    this.setState({ error: null });
    try {
      const version = await get(wanted ? `${path(name)}/versions/${encodeURIComponent(wanted)}` : path(name));
      if (isWanted()) this.setState({ version, input: undefined });
      const { versions } = await get(`${path(name)}/versions`);
      if (isWanted()) this.setState({ versions });
    } catch (error) {
      if (isWanted()) this.setState({ error: error.message });
    }
  }

  async start(event) {
    event.preventDefault();
    const { version, input } = this.state;
    this.setState({ isBusy: true, error: null });
    try {
      const run = await post(`${path(this.props.name)}/runs`, { input: input ?? {}, version: version.version });
      go(runPlace(run.run_id));
    } catch (error) {
      this.setState({ error: error.message, isBusy: false });
    }
  }

  render({ name }, { version, versions, input, error, isBusy }) {
    const schema = version?.input_schema ?? {};
    const isOpen = !(schema.required ?? []).length;
    return html`<main>
      <p class="crumbs"><a href="/console/workflows">Workflows</a></p>
      <div class="bar">
        <h1 tabindex="-1">${version?.definition.title ?? name}</h1>
        ${version && html`<span class="dim">version ${version.version}${version.is_latest ? ", the latest" : ""}</span>`}
      </div>
      <${Notice} text=${error} />
      ${version && html`
        <p class="lead">${version.definition.description ?? ""}</p>
        <${Graph} steps=${version.definition.steps} />
        <div class="columns">
          <div>
            <h2>Start</h2>
            <form class="card start" onSubmit=${(event) => this.start(event)}>
              <${Answer} key=${`${name} ${version.version}`} id="input" schema=${schema} set=${(value) => this.setState({ input: value })} />
              <button type="submit" disabled=${isBusy || (input === undefined && !isOpen)}>Start a run</button>
            </form>
            <h2>Definition</h2>
            <div class="card"><${Tree} value=${version.definition} /></div>
          </div>
          <aside aria-label="Versions">
            <h2>Versions</h2>
            <ul class="below">
              ${[...versions].reverse().map((each) => html`<li key=${each.version}>
                <a href=${`${place(name)}?${new URLSearchParams({ version: each.version })}`} aria-current=${each.version === version.version ? "true" : undefined}>${each.version}</a>
                <span class="dim"><${Time} at=${each.created_at} /></span>
              </li>`)}
            </ul>
            <p><a href=${`/console/runs?${new URLSearchParams({ agent: name })}`}>Its runs</a></p>
          </aside>
        </div>`}
    </main>`;
  }
}

// @ts-check
// What waits for its turn: starts in the session of a run, which can be moved up or withdrawn, and a
// run of a workflow behind others with its key.

import { get, post, remove } from "../api.js";
import { short } from "../text.js";
import { runPlace } from "./place.js";
import { Component, html } from "./view.js";

const READ_MS = 3000;

export class Queue extends Component {
  constructor() {
    super();
    this.state = { waiting: [], running: [], error: null };
  }

  componentDidMount() {
    this.read();
    this.clock = setInterval(() => this.read(), READ_MS);
  }

  componentWillUnmount() {
    clearInterval(this.clock);
    this.isGone = true;
  }

  path(...parts) {
    const { session, user } = this.props;
    const path = ["sessions", session, "queue", ...parts].map(encodeURIComponent).join("/");
    return `/v1/${path}?${new URLSearchParams({ user_id: user })}`;
  }

  async read() {
    if (document.hidden) return;
    try {
      const { queue: waiting, running } = await get(`${this.path()}&${new URLSearchParams({ agent: this.props.agent })}`);
      if (!this.isGone) this.setState({ waiting, running });
    } catch {
      // The list is read again; the run itself says what does not answer.
    }
  }

  async act(action) {
    try {
      await action;
      this.setState({ error: null });
    } catch (error) {
      this.setState({ error: error.message });
    }
    await this.read();
  }

  render({ runId }, { waiting, running, error }) {
    if (!waiting.length && !error) return null;
    const before = waiting.findIndex((each) => each.run_id === runId);
    return html`<section class="queue" aria-label="Waiting in this session">
      <h2>Waiting in this session</h2>
      ${error && html`<p class="notice" role="alert">${error}</p>`}
      ${before >= 0 && html`<p class="turn">This run waits for its turn${running.length > 0 && html`, behind ${running.map(({ run_id: id, message }) => html`<a href=${runPlace(id)}>${short(message, 60)}</a>`)}`}${before > 0 && ` and ${before} more`}.</p>`}
      <ol class="below">
        ${waiting.map(({ run_id: id, message }, at) => html`<li key=${id}>
          ${id === runId ? html`<span>this run</span>` : html`<a href=${runPlace(id)}>${short(message, 60)}</a>`}
          ${at > 0 && html`<button type="button" class="quiet small up" aria-label=${`Move up: ${short(message, 60)}`}
            onClick=${() => this.act(post(this.path(id, "move"), { before: waiting[at - 1].run_id }))}>Up</button>`}
          <button type="button" class="quiet small withdraw" aria-label=${`Withdraw: ${short(message, 60)}`}
            onClick=${() => this.act(remove(this.path(id)))}>Withdraw</button>
        </li>`)}
      </ol>
    </section>`;
  }
}

const OPEN = ["running", "paused"];

/** Says behind which runs of its workflow a run waits. The API does not tell the key of a run. */
export class Turn extends Component {
  constructor() {
    super();
    this.state = { before: null };
  }

  componentDidMount() {
    // A run that does not wait begins its first step at once, and this is not shown.
    this.clock = setInterval(() => this.read(), READ_MS);
  }

  componentWillUnmount() {
    clearInterval(this.clock);
    this.isGone = true;
  }

  async read() {
    if (document.hidden) return;
    const { agent, runId } = this.props;
    const lists = OPEN.map((status) => get(`/v1/runs?${new URLSearchParams({ agent, status, before: runId, limit: "20" })}`));
    try {
      const before = (await Promise.all(lists)).flatMap(({ runs }) => runs);
      if (!this.isGone) this.setState({ before });
    } catch {
      // The lists are read again; the run itself says what does not answer.
    }
  }

  render(_, { before }) {
    if (!before) return null;
    return html`<section class="queue" aria-label="Waiting for its turn">
      <h2>Waiting for its turn</h2>
      <p class="turn">Of this workflow, runs with the same key are under way one after another. ${before.length ? "These began earlier:" : "You see none of those before this one."}</p>
      <ol class="below">${before.map(({ run_id: id, message }) => html`<li key=${id}><a href=${runPlace(id)}>${short(message, 60) || id}</a></li>`)}</ol>
    </section>`;
  }
}

// @ts-check
// What waits for its turn: starts in the session of a run, which can be moved up or withdrawn, and a
// run of a workflow behind others with its key.

import { get, post, remove } from "../api.js";
import { short } from "../text.js";
import { runPlace } from "./place.js";
import { titleOf } from "./run_list.js";
import { Component, Notice, html } from "./view.js";

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
      <${Notice} text=${error} />
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

const NAMED = 5; // so many of the runs before are shown with what they are about

/** Says behind which runs of its workflow a run waits, and for which key. */
export class Turn extends Component {
  constructor() {
    super();
    this.state = { turn: null };
    this.runs = new Map(); // the records of runs before this one, by their ids
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
    const { workflow, runId } = this.props;
    try {
      const turn = await get(`/v1/workflows/${encodeURIComponent(workflow)}/runs/${encodeURIComponent(runId)}/turn`);
      for (const id of turn.runs.slice(0, NAMED)) {
        if (!this.runs.has(id)) this.runs.set(id, await get(`/v1/runs/${encodeURIComponent(id)}`));
      }
      if (!this.isGone) this.setState({ turn });
    } catch {
      // It is read again; the run itself says what does not answer.
    }
  }

  render(_, { turn }) {
    if (!turn) return null;
    const { key, before, runs } = turn;
    const unseen = before - runs.length;
    return html`<section class="queue" aria-label="Waiting for its turn">
      <h2>Waiting for its turn</h2>
      <p class="turn">Of this workflow, runs with the key <code>${short(key, 100)}</code> are under way one after another. ${before === 1 ? "One comes" : `${before} come`} before this one${unseen > 0 ? `, of which you may not see ${unseen}` : ""}.</p>
      <ol class="below">${runs.map((id) => html`<li key=${id}><a href=${runPlace(id)}>${this.runs.has(id) ? titleOf(this.runs.get(id), 60) : id}</a></li>`)}</ol>
    </section>`;
  }
}

// @ts-check
// The starts that wait for their turn in the session of a run: move them up, or withdraw them.

import { get, post, remove } from "../api.js";
import { short } from "../text.js";
import { runPlace } from "./place.js";
import { Component, html } from "./view.js";

const READ_MS = 3000;

export class Queue extends Component {
  constructor() {
    super();
    this.state = { waiting: [], error: null };
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
      const { queue: waiting } = await get(`${this.path()}&${new URLSearchParams({ agent: this.props.agent })}`);
      if (!this.isGone) this.setState({ waiting });
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

  render({ runId }, { waiting, error }) {
    if (!waiting.length && !error) return null;
    return html`<section class="queue" aria-label="Waiting in this session">
      <h2>Waiting in this session</h2>
      ${error && html`<p class="notice" role="alert">${error}</p>`}
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

// @ts-check
// The state of a run after one of its events, as the API tells it.

import { get } from "../api.js";
import { Component, Notice, Tree, html } from "./view.js";

const PAUSE_MS = 150; // a slider that moves asks once, when it rests

export class State extends Component {
  constructor() {
    super();
    this.state = { told: null, error: null };
  }

  componentDidMount() {
    this.read();
  }

  componentDidUpdate(before) {
    if (before.path === this.props.path && before.at === this.props.at) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.read(), PAUSE_MS);
  }

  componentWillUnmount() {
    clearTimeout(this.timer);
    this.isGone = true;
  }

  /** A state may be large, so it is not drawn with each event that comes. */
  shouldComponentUpdate({ path, at }, state) {
    return path !== this.props.path || at !== this.props.at || state !== this.state;
  }

  async read() {
    const { path, at } = this.props;
    if (!at) return this.setState({ told: null, error: null });
    const isWanted = () => !this.isGone && this.props.path === path && this.props.at === at;
    try {
      const told = await get(`${path}/state?at=${at}`);
      if (isWanted()) this.setState({ told, error: null });
    } catch (error) {
      if (isWanted()) this.setState({ error: error.message });
    }
  }

  render({ path, at }, { told, error }) {
    if (error) return html`<${Notice} text=${error} />`;
    if (!told) return html`<p class="dim">${at ? "Loading…" : "Nothing has happened yet."}</p>`;
    return html`<div class="state-at" data-at=${told.at}>
      <p class="dim">After event ${String(told.at)} of the run itself. <a target="_blank" rel="noopener" href=${`${path}/state?at=${told.at}`}>As JSON</a></p>
      <${Tree} value=${told} />
    </div>`;
  }
}

// @ts-check
// The bytes of the agent server, as they came. Only the beginning of a very long answer is shown.

import { connection, oncePerFrame } from "./live.js";
import { Component, Growing, Notice, html } from "./view.js";

const MOST_BYTES = 4 * 1024 * 1024;

export class Raw extends Component {
  constructor() {
    super();
    this.state = { text: "", error: null, isCut: false };
    this.text = "";
    this.draw = oncePerFrame((done) => this.setState({ text: this.text }, done));
  }

  componentDidMount() {
    // The stream of a run that goes on has a connection, of which a browser has few.
    this.look = () => {
      if (document.hidden) this.stop?.abort();
      else if (!this.state.isRead) this.read();
    };
    document.addEventListener("visibilitychange", this.look);
    this.look();
  }

  componentWillUnmount() {
    document.removeEventListener("visibilitychange", this.look);
    this.stop?.abort();
  }

  async read() {
    this.stop?.abort();
    const stop = new AbortController();
    const { signal } = (this.stop = stop);
    await connection(signal, () => this.read());
    if (signal.aborted) return;
    const decoder = new TextDecoder();
    let [text, size] = ["", 0];
    this.setState({ error: null });
    try {
      const headers = { accept: "text/event-stream" };
      const answer = await fetch(this.props.path, { credentials: "same-origin", redirect: "error", headers, signal });
      if (!answer.ok) {
        const problem = await answer.json().catch(() => ({}));
        throw new Error(problem.detail ?? `HTTP ${answer.status}`);
      }
      const reader = answer.body?.getReader();
      while (reader && size < MOST_BYTES) {
        const { done, value } = await reader.read();
        if (done) break;
        text += decoder.decode(value.subarray(0, MOST_BYTES - size), { stream: true });
        size += value.length;
        if (text.length <= this.text.length) continue; // read before this turn
        this.text = text;
        this.draw();
      }
      this.setState({ text, isCut: size >= MOST_BYTES, isRead: true });
    } catch (error) {
      if (!signal.aborted) this.setState({ error: error.message });
    }
    stop.abort();
  }

  render({ path }, { text, error, isCut, isRead }) {
    return html`<div class="raw">
      <p class="dim"><a target="_blank" rel="noopener" href=${path}>All of it</a>${isCut ? ". Here are only the first 4 MiB." : ""}</p>
      <${Notice} text=${error} />
      ${isRead && !text && html`<p class="dim">There are no bytes of the agent server, or they are no longer kept.</p>`}
      <${Growing} className="text bytes" text=${text} />
    </div>`;
  }
}

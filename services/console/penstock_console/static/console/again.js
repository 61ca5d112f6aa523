// @ts-check
// Run again: what the run did, which happens again, and the same or an edited input.

import { post } from "../api.js";
import { go, runPlace } from "./place.js";
import { Component, Exact, Said, html } from "./view.js";
import { UNSEEN } from "../unseen.js";

const MOST_CHARACTERS = 50_000; // events have no more of a first message

/** Return the tools that a transcript called, each with the number of its calls. */
export function called(transcript) {
  const counts = new Map();
  for (const { kind, tool } of transcript.items) {
    if (kind === "tool") counts.set(tool, (counts.get(tool) ?? 0) + 1);
  }
  return [...counts];
}

/** The form that starts the run again. `run` is its record, `transcript` has all its events. */
export class Again extends Component {
  constructor(props) {
    super();
    const asked = props.transcript.items.find((each) => each.kind === "asked");
    const { workflow } = props.transcript;
    const text = workflow ? JSON.stringify(workflow.input ?? {}, null, 2) : (asked?.text ?? props.run.message);
    this.state = { text, error: null, isBusy: false };
  }

  componentDidMount() {
    this.field.focus();
  }

  async start(event) {
    event.preventDefault();
    const { run, transcript } = this.props;
    this.setState({ isBusy: true, error: null });
    try {
      const again = await post(...this.request(run, transcript));
      go(runPlace(again.run_id));
    } catch (error) {
      this.setState({ isBusy: false, error: error instanceof SyntaxError ? `This is no JSON: ${error.message}` : error.message });
    }
  }

  request(run, { workflow }) {
    const { text } = this.state;
    const forked = { forked_from: { run_id: run.run_id, sequence: 0 }, ...(run.tags && { tags: run.tags }) };
    if (!workflow) return ["/v1/runs", { agent: run.agent, message: text, ...forked }];
    return [`/v1/workflows/${encodeURIComponent(workflow.workflow)}/runs`, { input: JSON.parse(text), ...forked }];
  }

  render({ transcript, onClose }, { text, error, isBusy }) {
    const tools = called(transcript);
    const isCut = !transcript.workflow && text.length >= MOST_CHARACTERS;
    return html`<form class="again card" aria-label="Run again" onSubmit=${(event) => this.start(event)}
      onKeyDown=${(event) => event.key === "Escape" && onClose()}>
      <h2>Run again</h2>
      <p>A new run in a new session. Nothing is taken over from this run, and the policy asks as ever.</p>
      ${tools.length > 0
        ? html`<p>This run has called what the new one is likely to call again:</p>
            <ul class="called">
              ${tools.map(([tool, count]) => html`<li><span class="tool"><${Exact} text=${tool} /></span>${count > 1 ? ` ${count} times` : ""}</li>`)}
            </ul>`
        : html`<p class="dim">This run has called no tool.</p>`}
      ${isCut && html`<p class="notice">Events have only the first ${MOST_CHARACTERS.toLocaleString()} characters of this message.</p>`}
      <label for="again-text" class="tall">${transcript.workflow ? "Input, as JSON" : "Message"}
        <textarea id="again-text" rows="4" spellcheck="false" required ref=${(field) => (this.field = field)} value=${text}
          onInput=${(event) => this.setState({ text: event.target.value })}></textarea></label>
      ${UNSEEN.test(text) && html`<p class="dim">It has characters that cannot be seen: ${text}</p>`}
      <div class="buttons">
        <button type="submit" disabled=${isBusy}>Start the new run</button>
        <button type="button" class="quiet" onClick=${onClose}>Close</button>
      </div>
      <p class="error" role="alert"><${Said} text=${error ?? ""} /></p>
    </form>`;
  }
}

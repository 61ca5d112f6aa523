// @ts-check
// Fork: a new run that goes on after an event of this one. Before it starts, the form says what is
// taken over, and what may be done again.

import { get, post } from "../api.js";
import { UNSEEN } from "../unseen.js";
import { go, runPlace } from "./place.js";
import { Component, Exact, Said, html } from "./view.js";

const PAUSE_MS = 150; // a number that is typed is asked about once

/** Return the names in order, each with how often it occurs. */
function counted(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts];
}

const Names = ({ names }) => html`<ul class="called">
  ${counted(names).map(([name, count]) => html`<li key=${name}><span class="tool"><${Exact} text=${name} /></span>${count > 1 ? ` ${count} times` : ""}</li>`)}
</ul>`;

/** What a fork would take over, in words. */
function taken({ steps, messages, tool_calls: calls }) {
  const parts = [];
  if (messages) parts.push(messages === 1 ? "one message of the agent" : `${messages} messages of the agent`);
  if (calls) parts.push(calls === 1 ? "the result of one tool" : `the results of ${calls} tools`);
  if (steps.length) return html`<p>Not done again, since they had completed:</p><${Names} names=${steps} />`;
  return html`<p>${parts.length ? `The new run knows ${parts.join(" and ")}.` : "Nothing is taken over but the first message."}</p>`;
}

/** The form that forks a run. `path` is the run's, `at` the event after which the new run goes on. */
export class Fork extends Component {
  constructor(props) {
    super();
    this.state = { sequence: String(props.at), text: "", seen: null, error: null, isBusy: false };
  }

  componentDidMount() {
    this.field.focus();
    this.look();
  }

  componentDidUpdate(before) {
    if (before.at !== this.props.at) this.choose(String(this.props.at));
  }

  componentWillUnmount() {
    clearTimeout(this.timer);
    this.isGone = true;
  }

  choose(sequence) {
    this.setState({ sequence, seen: null });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(), PAUSE_MS);
  }

  async look() {
    const { sequence } = this.state;
    const isWanted = () => !this.isGone && this.state.sequence === sequence;
    try {
      const seen = await get(`${this.props.path}/fork?${new URLSearchParams({ sequence })}`);
      if (isWanted()) this.setState({ seen, error: null });
    } catch (error) {
      if (isWanted()) this.setState({ error: error.message });
    }
  }

  async start(event) {
    event.preventDefault();
    const { sequence, text } = this.state;
    this.setState({ isBusy: true, error: null });
    try {
      const body = { sequence: Number(sequence), ...(text.trim() ? { message: text } : {}) };
      const forked = await post(`${this.props.path}/fork`, body);
      go(runPlace(forked.run_id));
    } catch (error) {
      this.setState({ isBusy: false, error: error.message });
    }
  }

  render({ isWorkflow, onClose }, { sequence, text, seen, error, isBusy }) {
    const again = seen ? [...seen.later_steps, ...seen.later_tools] : [];
    return html`<form class="again card" aria-label="Fork the run" onSubmit=${(event) => this.start(event)}
      onKeyDown=${(event) => event.key === "Escape" && onClose()}>
      <h2>Fork</h2>
      <p>A new run that goes on after an event of this one. This run stays as it is, and the policy asks as ever.</p>
      <label for="fork-sequence">After event
        <input id="fork-sequence" type="number" min="1" required ref=${(field) => (this.field = field)} value=${sequence}
          onInput=${(event) => this.choose(event.target.value)} /></label>
      <div aria-live="polite" class="forecast">
        ${!seen && !error && html`<p class="dim">Loading…</p>`}
        ${seen && !seen.possible && html`<p class="notice"><${Said} text=${seen.reason} /></p>`}
        ${seen?.possible && html`${taken(seen.taken_over)}
          ${seen.asks_again.length > 0 && html`<p>People are asked again in:</p><${Names} names=${seen.asks_again} />`}
          ${again.length > 0
            ? html`<p>What this run did later, and the new one is likely to do again:</p><${Names} names=${again} />`
            : html`<p class="dim">${isWorkflow ? "What had not completed is done." : "This run has called no tool later."}</p>`}`}
      </div>
      ${!isWorkflow && html`<label for="fork-text" class="tall">${seen?.needs_message ? "Message" : "Message, if you say something here"}
        <textarea id="fork-text" rows="3" required=${Boolean(seen?.needs_message)} value=${text} onInput=${(event) => this.setState({ text: event.target.value })}></textarea></label>
        ${UNSEEN.test(text) && html`<p class="dim">It has characters that cannot be seen: ${text}</p>`}`}
      <div class="buttons">
        <button type="submit" disabled=${isBusy || !seen?.possible}>Start the fork</button>
        <button type="button" class="quiet" onClick=${onClose}>Close</button>
      </div>
      <p class="error" role="alert"><${Said} text=${error ?? ""} /></p>
    </form>`;
  }
}

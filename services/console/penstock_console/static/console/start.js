// @ts-check
// The start screen: three trials, the agents, and the latest runs.

import { get, getDated, post } from "../api.js";
import { END_CONNECTOR } from "../demo.js";
import { Transcript } from "./fold.js";
import { follow, oncePerFrame } from "./live.js";
import { runPlace } from "./place.js";
import { Runs } from "./runs.js";
import { Story } from "./story.js";
import { Component, Grows, Notice, Said, Time, html, keepEnd, money } from "./view.js";

const AGAIN_MS = 3000;
const OPEN = ".decision:not(.is-settled)";
const SPENT_DAYS = 30;
const DAY_MS = 86_400_000;
const TRIALS = [
  {
    title: "A streamed run",
    about: "The answer as it comes, with a tool call on the way.",
    message: "What is the weather in Paris?",
  },
  {
    title: "A run that asks you first",
    about: "The tool does not run before you approve it, with exactly these arguments.",
    message: "Please delete report.txt",
  },
  {
    title: "A stream to come back to",
    about: `Leave in the middle: the run goes on. Come back: nothing is missing. ${END_CONNECTOR ? "End the connector: another one continues the run." : "Or cancel it."}`,
    message: "Tell me a slow story",
    mayLeave: true,
  },
];

/** Send the form at Enter; Shift+Enter begins a line. */
function sends(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.target.form.requestSubmit();
}

/**
 * Starts a run and shows it. `state.phase` is `idle`, `starting`, `live`, `left` (nobody reads the
 * stream, the run goes on) or `ended`.
 */
class Trial extends Component {
  constructor(props) {
    super();
    this.state = { phase: "idle", said: "Not started", agent: null, message: props.message };
    this.draw = oncePerFrame(() => this.setState({}));
  }

  componentDidUpdate() {
    this.showDecision();
    if (this.told === this.watched) return;
    this.watcher?.disconnect();
    this.watched = this.told;
    this.watcher = this.told && keepEnd(this.told, this.told.parentElement, () => !this.told?.querySelector(OPEN));
  }

  /** Of a decision, what is asked comes into view first, and not the buttons below. */
  showDecision() {
    const decision = this.told?.querySelector(OPEN);
    if (decision === this.decision) return;
    this.decision = decision;
    this.grows?.disconnect();
    if (!decision) return;
    const box = this.told.parentElement;
    const hidden = () => decision.getBoundingClientRect().top - box.getBoundingClientRect().top;
    // As long as it is small, it cannot come to the top.
    this.grows = new ResizeObserver(() => {
      box.scrollTop += hidden();
      if (hidden() <= 1) this.grows.disconnect();
    });
    this.grows.observe(decision);
  }

  componentWillUnmount() {
    this.isGone = true;
    this.watcher?.disconnect();
    this.grows?.disconnect();
    this.stream?.close();
  }

  async start(event) {
    event.preventDefault();
    const { message } = this.state;
    this.transcript = null;
    this.setState({ phase: "starting", said: "starting…" });
    try {
      const run = await post("/v1/runs", { agent: this.agent(), message });
      if (this.isGone) return;
      this.path = `/v1/runs/${encodeURIComponent(run.run_id)}`;
      this.transcript = new Transcript(run.run_id);
      Object.assign(this, { cursor: null, count: 0, backFrom: 0 });
      this.follow();
    } catch (error) {
      this.setState({ phase: "idle", said: error.message });
    }
  }

  agent() {
    return this.state.agent ?? this.props.agents[0]?.id ?? "";
  }

  follow() {
    this.setState({ phase: "live" });
    this.stream = follow(`${this.path}/events?names=off&include=children`, {
      after: this.cursor,
      take: (message) => this.take(message),
      state: (word) => word === "lost" && this.setState({ said: `connection lost after event ${this.count}; the browser comes back by itself` }),
      ended: async () => {
        this.setState({ phase: this.props.mayLeave ? "left" : "idle", said: `the stream was refused after event ${this.count}` });
        return false;
      },
    });
  }

  take(message) {
    const { transcript } = this;
    transcript.take(JSON.parse(message.data));
    this.cursor = message.lastEventId;
    this.count += 1;
    if (transcript.end) {
      this.stream.close();
      this.setState({ phase: "ended", said: `${transcript.end.event.action} with event ${this.count}` });
    } else {
      this.setState({ said: `event ${this.count}${this.backFrom ? `, back since event ${this.backFrom}` : ""}` });
    }
    this.draw();
  }

  leave() {
    this.stream.close();
    this.backFrom = this.count + 1;
    this.setState({ phase: "left", said: `left after event ${this.count}; the run goes on` });
  }

  /** Kill the demo's connector, in whose hands the run is. */
  async endConnector() {
    try {
      await post(END_CONNECTOR, {});
      this.setState({ said: `the connector was killed after event ${this.count}; another one takes the run over` });
    } catch (error) {
      this.setState({ said: error.message });
    }
  }

  async cancel() {
    if (this.state.phase === "left") this.follow(); // so that the end is seen
    try {
      await post(`${this.path}/cancel`, {});
    } catch (error) {
      this.setState({ said: error.message });
    }
  }

  render({ id, title, about, agents, mayLeave }, { phase, said, message }) {
    const { transcript } = this;
    const isBusy = phase === "starting" || phase === "live" || phase === "left";
    return html`<article class="card trial" id=${id} aria-labelledby=${`${id}-title`}>
      <h2 id=${`${id}-title`}>${title}</h2>
      <p class="dim">${about}</p>
      <form onSubmit=${(event) => this.start(event)}>
        <label for=${`${id}-agent`}>Agent
          <select id=${`${id}-agent`} required value=${this.agent()} onChange=${(event) => this.setState({ agent: event.target.value })}>
            ${agents.map(({ id }) => html`<option value=${id}>${id}</option>`)}
          </select></label>
        <label for=${`${id}-message`}>Message
          <${Grows} id=${`${id}-message`} required maxlength="20000" value=${message} onKeyDown=${sends}
            onInput=${(event) => this.setState({ message: event.target.value })} /></label>
        <button type="submit" disabled=${isBusy || !agents.length}>Run</button>
      </form>
      <div class="stage" tabindex="0" role="log" aria-live="off" aria-label=${`${title}: the run`}>
        ${transcript && html`<div ref=${(told) => (this.told = told)}><${Story} transcript=${transcript} /></div>`}
      </div>
      <p class="foot">
        <span class="dim" role="status">${said}</span>
        ${mayLeave && (phase === "left"
          ? html`<button type="button" class="quiet small" key="back" onClick=${() => this.follow()}>Come back</button>`
          : html`<button type="button" class="quiet small" key="leave" disabled=${phase !== "live"} onClick=${() => this.leave()}>Leave the stream</button>`)}
        ${mayLeave && END_CONNECTOR && html`<button type="button" class="quiet small" key="end" disabled=${phase !== "live"} onClick=${() => this.endConnector()}>End the connector</button>`}
        <button type="button" class="reject small" disabled=${phase !== "live" && phase !== "left"} onClick=${() => this.cancel()}>Cancel the run</button>
        ${transcript && html`<a href=${runPlace(transcript.runId)}>Open the run</a>`}
      </p>
    </article>`;
  }
}

function Spent({ total }) {
  const read = total.input_tokens + total.total_tokens;
  if (!read && !total.tool_calls) return null;
  const number = new Intl.NumberFormat();
  const costs = Object.entries(total.cost_micros).map(([currency, micros]) => money(currency, micros));
  if (costs.length && total.without_price) costs.push("calls without a known price");
  return html`<h2 id="spent">Used in ${SPENT_DAYS} days</h2>
    <p>${number.format(read)} tokens read, ${number.format(total.output_tokens)} written${costs.length > 0 && `: ${costs.join(" + ")}`}</p>`;
}

/** More frames than these are no longer the moment that each event takes. */
const LATE_FRAMES = 1000;

/** Whether the services work, in words for everybody; `at` is when they were asked. */
function Health({ services, frames_behind: behind, at, error }) {
  if (error) return html`<h2 id="health">Health</h2><p class="bad">It is not known whether the services answer: <${Said} text=${error} /></p>`;
  const silent = services.filter((each) => !each.answers).map((each) => each.name);
  return html`<h2 id="health">Health</h2>
    ${silent.length > 0
      ? html`<p class="bad">No answer from: ${silent.join(", ")}. What needs ${silent.length === 1 ? "it" : "them"} waits, and nothing is lost.</p>`
      : html`<p class="good">All services answer.</p>`}
    <p class="dim">as of <${Time} at=${at} /></p>
    ${behind > LATE_FRAMES && html`<p class="bad">The events of your runs come late: ${behind.toLocaleString()} frames wait.</p>`}`;
}

function Agents({ agents, spent, health }) {
  const stateOf = ({ answers, starting }) => (answers ? "answers" : starting ? "is being set up" : "does not answer");
  return html`<aside aria-labelledby="agents">
    ${health && html`<${Health} ...${health} />`}
    <h2 id="agents">Agents</h2>
    <ul class="agents">
      ${agents.map((each) => html`<li key=${each.id}>
        <span><strong>${each.id}</strong>${each.name !== each.id && html` <span class="dim">${each.name}</span>`}</span> <span class="dim">${each.protocol}</span>
        <span class=${each.answers ? "good" : each.starting ? "dim" : "bad"}>${stateOf(each)}</span>
      </li>`)}
    </ul>
    ${spent && html`<${Spent} total=${spent} />`}
  </aside>`;
}

export class Start extends Component {
  constructor() {
    super();
    this.state = { agents: [], error: null, isRead: false, spent: null, health: null };
  }

  componentDidMount() {
    this.read();
    // No event says that the server of an agent has come.
    this.look = () => !document.hidden && this.read();
    document.addEventListener("visibilitychange", this.look);
  }

  componentWillUnmount() {
    this.isGone = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.look);
  }

  async read() {
    clearTimeout(this.timer);
    let again;
    try {
      const { agents } = await get("/v1/agents");
      this.setState({ agents, error: null, isRead: true });
      again = agents.some((each) => each.starting);
    } catch (error) {
      this.setState({ error: error.message });
      again = error.mayPass;
    }
    const since = new Date(Date.now() - SPENT_DAYS * DAY_MS).toISOString().slice(0, 10);
    // Without an answer, the screen is whole.
    getDated("/v1/health").then(
      ({ body, date }) => this.setState({ health: { ...body, at: date } }),
      (refused) => this.setState({ health: refused.mayPass ? { error: refused.message } : null }),
    );
    get(`/v1/costs?by=agent&since=${since}`).then(({ total }) => this.setState({ spent: total }), () => {});
    if (again && !this.isGone && !document.hidden) this.timer = setTimeout(() => this.read(), AGAIN_MS);
  }

  render({ onLive }, { agents, error, isRead, spent, health }) {
    return html`<main class="start-screen">
      <div class="bar">
        <h1 tabindex="-1">Event streams of AI agents: one order, nothing lost, and a person decides</h1>
      </div>
      <${Notice} text=${error} />
      <p class="dim">The messages are for the demo's agents. Yours answer in their own words.</p>
      <div class="trials">
        ${TRIALS.map((each, index) => html`<${Trial} key=${index} id=${`trial-${index + 1}`} agents=${agents} ...${each} />`)}
      </div>
      <div class="columns">
        <${Runs} search="" onLive=${onLive} isPart=${true} />
        ${agents.length > 0
          ? html`<${Agents} agents=${agents} spent=${spent} health=${health} />`
          : isRead && html`<aside class="dim">No agent is configured (docs/agents.md).</aside>`}
      </div>
    </main>`;
  }
}

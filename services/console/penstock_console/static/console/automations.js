// @ts-check
// The screens of automations: the rules, and one rule with its deliveries.

import { get, post } from "../api.js";
import { short } from "../text.js";
import { query, runPlace } from "./place.js";
import { Component, Delivered, Notice, Time, Tree, duration, html } from "./view.js";

const path = (id) => `/v1/automations/${encodeURIComponent(id)}`;
const place = (id) => `/console/automations/${encodeURIComponent(id)}`;
const SHOWN_MS = 24 * 3600 * 1000; // a rule is shown with its deliveries of a day
const STATUSES = ["waiting", "delivered", "failed"];
const DRY_RUN = { hours: 24, limit: 1000 };
const TRIED = {
  matched: "would fire it",
  condition: "do not fulfil its condition",
  missing_field: "lack a field of its condition",
  failed: "make its condition fail",
  not_allowed: "are of runs that it may not see or follow",
  unreadable: "cannot be read",
};

/** Return what a rule waits for, and what it does, as two texts. */
function described(rule) {
  const triggers = [...rule.subjects, ...(rule.hook ? ["a request to its hook"] : []), ...(rule.schedule ? ["a schedule"] : [])];
  const [kind, action] = Object.entries(rule.action)[0] ?? ["nothing", {}];
  const does = {
    webhook: () => `sends a webhook to ${action.url ?? ""}`,
    run: () => `starts ${action.agent ?? action.workflow ?? "a run"}`,
    decide: () => "decides the approval",
  }[kind];
  return [triggers.join(", "), does ? does() : kind];
}

function stateOf(rule) {
  if (rule.paused) return html`<span class="status is-paused">paused</span>`;
  return rule.enabled ? html`<span class="status is-completed">on</span>` : html`<span class="status is-cancelled">off</span>`;
}

/** A delivery, and below it, if it is opened, all attempts with their answers and the last request. */
class Delivery extends Component {
  constructor() {
    super();
    this.state = { isOpen: false, told: null, error: null };
  }

  async open(isOpen) {
    this.setState({ isOpen });
    const { rule, id } = this.props.delivery;
    if (!isOpen) return;
    try {
      this.setState({ told: await get(`${path(rule)}/deliveries/${encodeURIComponent(id)}`), error: null });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  render({ delivery, onAgain }, { isOpen, told, error }) {
    const { id, last, status, type, attempts } = delivery;
    const wait = status === "waiting";
    return html`<tr>
        <td><${Delivered} status=${status} />${delivery.waits_for && html` <span class="dim">for ${delivery.waits_for}</span>`}</td>
        <td>${delivery.run_id ? html`<a href=${runPlace(delivery.run_id)}>${type}</a>` : type}${delivery.started_run_id && html` <a href=${runPlace(delivery.started_run_id)}>the run it started</a>`}</td>
        <td><button type="button" class="quiet small attempts-of" aria-expanded=${isOpen} aria-label=${`${attempts} attempts of the delivery ${id}`}
          onClick=${() => this.open(!isOpen)}>${isOpen ? "▾" : "▸"} ${String(attempts)}</button></td>
        <td class="wide">${last && html`<${Time} at=${last.at} />`}</td>
        <td class="name">${last ? `${last.status ?? ""} ${short(last.text || last.answer || "", 120)} (${duration(last.seconds * 1000)})` : ""}</td>
        <td><button type="button" class="quiet small" aria-label=${`${wait ? "Try now" : "Replay"}: the delivery ${id}`}
          onClick=${() => onAgain(delivery, wait ? "retry-now" : "replay")}>${wait ? "Try now" : "Replay"}</button></td>
      </tr>
      ${isOpen && html`<tr class="opened"><td colspan="6">
        ${error && html`<p class="bad">${error}</p>`}
        ${told && html`<ol class="attempts">${told.all_attempts.map((each) => html`<li>
          <${Time} at=${each.at} /> ${each.status ?? ""} ${each.text ?? ""} (${duration(each.seconds * 1000)})
          ${each.answer && html`<p class="text">${each.answer}</p>`}</li>`)}</ol>
        ${told.request && html`<p class="dim">The last request</p><${Tree} value=${told.request} />`}`}
      </td></tr>`}`;
  }
}

/** What a dry run has found: how many events would fire the rule, and the first of each kind. */
function Tried({ found }) {
  return html`<div class="card tried">
    <p>Of ${found.looked_at.toLocaleString()} events${found.complete ? "" : " (there are more)"}:</p>
    <ul>${Object.entries(found.counts).filter(([kind, count]) => count || kind === "matched").map(([kind, count]) => html`<li key=${kind}>
      ${count.toLocaleString()} ${TRIED[kind] ?? kind}
      ${found.shown.filter((each) => each.why === kind).slice(0, 5).map((each) => html`<p class="dim"><a href=${runPlace(each.run_id)}>${each.type}</a> ${each.reason}</p>`)}
    </li>`)}</ul>
    <p class="dim">Nothing was sent.</p>
  </div>`;
}

function Deliveries({ deliveries, onAgain }) {
  return html`<table>
    <thead><tr><th scope="col">Outcome</th><th scope="col">Event</th><th scope="col">Attempts</th><th scope="col" class="wide">At</th><th scope="col">Last answer</th><th scope="col">Again</th></tr></thead>
    <tbody>
      ${deliveries.map((each) => html`<${Delivery} key=${`${each.id} ${each.replay ?? 0}`} delivery=${each} onAgain=${onAgain} />`)}
    </tbody>
  </table>`;
}

/** Return the latest attempt that has failed of each rule that has such deliveries. */
async function failures() {
  const since = new Date(Date.now() - SHOWN_MS).toISOString();
  const list = (query) => get(`/v1/automations/deliveries?limit=100&${new URLSearchParams(query)}`);
  const pages = await Promise.all([list({ status: "waiting" }), list({ status: "failed", since })]);
  const found = new Map();
  for (const { rule, last } of pages.flatMap((page) => page.deliveries)) {
    if (last?.code && !(found.get(rule)?.at > last.at)) found.set(rule, last);
  }
  return found;
}

/** How many of a rule's deliveries have succeeded, and why the last one that did not has failed. */
function Outcomes({ outcomes, failure }) {
  const { waiting, delivered, failed } = outcomes;
  const ended = delivered + failed;
  const rate = ended ? `${Math.floor((100 * delivered) / ended)} % of ${ended.toLocaleString()} delivered` : waiting || failure ? "" : "none";
  const parts = [rate, waiting && `${waiting.toLocaleString()} waiting`].filter(Boolean);
  return html`<span class=${failed ? "bad" : "dim"}>${parts.join(", ")}</span>${failure && html` <span class="bad">the latest failure: ${short(failure.text, 120)}</span>`}`;
}

export class Automations extends Component {
  constructor() {
    super();
    this.state = { rules: null, next: null, error: null, failures: new Map() };
  }

  componentDidMount() {
    this.read(null);
    failures().then((found) => this.setState({ failures: found }), () => {});
  }

  async read(after) {
    try {
      const since = new Date(Date.now() - SHOWN_MS).toISOString();
      const { automations, next } = await get(`/v1/automations?${new URLSearchParams({ outcomes_since: since, ...(after && { after }) })}`);
      this.setState({ rules: [...(after ? this.state.rules : []), ...automations], next });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  render(_, { rules, next, error, failures: found }) {
    return html`<main>
      <div class="bar"><h1 tabindex="-1">Automations</h1></div>
      <${Notice} text=${error} />
      ${rules?.length > 0 && html`<table>
        <thead><tr><th scope="col">State</th><th scope="col">Rule</th><th scope="col" class="wide">On</th><th scope="col">Does</th><th scope="col">Deliveries of a day</th></tr></thead>
        <tbody>
          ${rules.map((rule) => {
            const [on, does] = described(rule);
            return html`<tr key=${rule.id}>
              <td>${stateOf(rule)}</td>
              <td class="name"><a href=${place(rule.id)}>${rule.name || rule.id}</a></td>
              <td class="wide">${on}</td>
              <td data-label="it">${does}</td>
              <td class="outcomes" data-label="deliveries of a day:"><${Outcomes} outcomes=${rule.outcomes} failure=${found.get(rule.id)} /></td>
            </tr>`;
          })}
        </tbody>
      </table>`}
      ${rules?.length === 0 && html`<div class="empty">
        <p>There are no rules yet.</p>
        <p>A rule sends a webhook or starts a run when something happens.</p>
        <p>Write one (docs/automations.md), then: <code>penstock automations apply FILE</code></p>
      </div>`}
      ${next && html`<p class="more"><button type="button" class="quiet" onClick=${() => this.read(next)}>More</button></p>`}
    </main>`;
  }
}

export class Automation extends Component {
  constructor() {
    super();
    this.state = { rule: null, deliveries: null, next: null, error: null, isBusy: false, tried: null };
  }

  componentDidMount() {
    this.read();
  }

  componentDidUpdate(before) {
    if (before.ruleId !== this.props.ruleId || before.search !== this.props.search) this.read();
  }

  async read(after = null) {
    const { ruleId, search } = this.props;
    const { status } = query(search, ["status"]);
    try {
      const rule = await get(path(ruleId));
      const wanted = new URLSearchParams({ limit: "50", ...(status && { status }), ...(after && { after }) });
      const { deliveries, next } = await get(`${path(ruleId)}/deliveries?${wanted}`);
      if (this.props.ruleId !== ruleId || this.props.search !== search) return;
      this.setState({ rule, deliveries: [...(after ? this.state.deliveries : []), ...deliveries], next, error: null });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  async send(below, body = {}) {
    this.setState({ isBusy: true });
    try {
      await post(`${path(this.props.ruleId)}/${below}`, body);
      await this.read();
    } catch (error) {
      this.setState({ error: error.message });
    }
    this.setState({ isBusy: false });
  }

  async dryRun() {
    this.setState({ isBusy: true, error: null });
    const since = new Date(Date.now() - DRY_RUN.hours * 3600 * 1000).toISOString();
    try {
      this.setState({ tried: await post(`${path(this.props.ruleId)}/dry-run`, { since, limit: DRY_RUN.limit }) });
    } catch (error) {
      this.setState({ error: error.message });
    }
    this.setState({ isBusy: false });
  }

  render({ ruleId, search }, { rule, deliveries, next, error, isBusy, tried }) {
    const { status } = query(search, ["status"]);
    return html`<main>
      <p class="crumbs"><a href="/console/automations">Automations</a></p>
      <div class="bar">
        <h1 tabindex="-1">${rule?.name || ruleId}</h1>
        ${rule && stateOf(rule)}
        ${rule?.subjects.length > 0 && html`<button type="button" class="quiet dry-run" disabled=${isBusy} onClick=${() => this.dryRun()}>Dry run over the last day</button>`}
        ${rule && html`<button type="button" class="quiet pause" disabled=${isBusy} onClick=${() => this.send(rule.paused ? "resume" : "pause")}>${rule.paused ? "Resume the rule" : "Pause the rule"}</button>`}
      </div>
      <${Notice} text=${error} />
      ${rule?.paused?.reason && html`<p class="dim">Paused: ${rule.paused.reason}</p>`}
      ${rule && html`<details class="card"><summary>The rule</summary><${Tree} value=${rule} /></details>`}
      ${tried && html`<${Tried} found=${tried} />`}
      ${deliveries && html`<div class="bar">
          <h2>Deliveries</h2>
          <nav class="choices" aria-label="Deliveries by outcome">
            ${["", ...STATUSES].map((each) => html`<a href=${`${place(ruleId)}${each ? `?status=${each}` : ""}`} aria-current=${each === status ? "true" : undefined}>${each || "all"}</a>`)}
          </nav>
          <button type="button" class="quiet" disabled=${isBusy} onClick=${() => this.read()}>Read again</button>
        </div>
        ${deliveries.length > 0
          ? html`<${Deliveries} deliveries=${deliveries} onAgain=${(each, what) => this.send(`deliveries/${encodeURIComponent(each.id)}/${what}`)} />`
          : html`<div class="empty"><p>No delivery ${status ? `is ${status}` : "yet"}.</p></div>`}`}
      ${next && html`<p class="more"><button type="button" class="quiet" onClick=${() => this.read(next)}>Older deliveries</button></p>`}
    </main>`;
  }
}

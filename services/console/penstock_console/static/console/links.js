// @ts-check
// What a run has outside of itself: deliveries of rules, its approvals with who saw and decided them,
// its trace, and its events in other dialects.

import { get } from "../api.js";
import { short } from "../text.js";
import { outcomeOf } from "./decision.js";
import { approvalPlace, runPlace } from "./place.js";
import { Component, Delivered, Exact, Id, Notice, Outside, Time, duration, html } from "./view.js";

const MOST_RULES = 1000;
const DIALECTS = ["raw", "canonical", "agui", "unified"];
const CHANNELS = { link: "a one-time link", page: "the console", cli: "the terminal", api: "the API", policy: "the policy", automation: "a rule" };

/** What rules have sent or started for events of the run. `known` has the rules that the reader may see. */
function Deliveries({ deliveries, known }) {
  if (!deliveries.length) return html`<p class="dim">No rule has sent anything for this run.</p>`;
  return html`<table class="deliveries">
    <thead><tr><th scope="col">Outcome</th><th scope="col">Rule</th><th scope="col">On</th><th scope="col">Result</th><th scope="col" class="number">Attempts</th></tr></thead>
    <tbody>${deliveries.map((each) => html`<tr key=${each.id}>
      <td><${Delivered} status=${each.status} /></td>
      <td>${known.has(each.automation) ? html`<a href=${`/console/automations/${encodeURIComponent(each.automation)}`}>${each.automation}</a>` : (each.workflow ?? each.automation)}</td>
      <td>${each.trigger ?? ""}</td>
      <td class="name">${each.started_run_id && html`<a href=${runPlace(each.started_run_id)}>the run it started</a> `}${short(each.error?.message ?? each.result ?? "", 200)}${each.status_code ? ` (HTTP ${each.status_code})` : ""}</td>
      <td class="number" data-label="attempts:">${each.attempts === undefined ? "" : `${each.attempts}${each.duration_s > 0 ? ` in ${duration(each.duration_s * 1000)}` : ""}`}</td>
    </tr>`)}</tbody>
  </table>`;
}

/** An approval, and below it, if it is opened, what the audit says of it. */
class Asked extends Component {
  constructor() {
    super();
    this.state = { audit: null, error: null };
  }

  async open(isOpen) {
    if (!isOpen) return;
    try {
      this.setState({ audit: await get(`/v1/approvals/${encodeURIComponent(this.props.approval.approval_id)}/audit`), error: null });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  render({ approval }, { audit, error }) {
    const { items, decision, requested_at: at } = approval;
    const channel = decision?.decider?.channel;
    return html`<details class="card asked" onToggle=${(event) => this.open(event.target.open)}>
      <summary><span class="tool"><${Exact} text=${items.map((each) => each.tool ?? each.kind).join(", ")} /></span>${" "}
        <strong>${outcomeOf(approval) ?? "waits for a person"}</strong>${channel ? ` through ${CHANNELS[channel] ?? channel}` : ""}${" "}
        <span class="dim"><${Time} at=${decision?.at ?? at} /></span></summary>
      ${error && html`<p class="bad">${error}</p>`}
      ${audit && html`<ol class="audit">${audit.records.map((each) => html`<li key=${each.key}>
          <${Time} at=${each.at} /> <strong>${each.event}</strong> ${each.by ? html`by <${Exact} text=${each.by} />` : ""}
          ${each.to ? html` to <${Exact} text=${each.to} />` : ""}${each.on_behalf_of ? html` for <${Exact} text=${each.on_behalf_of} />` : ""}${each.channel ? ` through ${CHANNELS[each.channel] ?? each.channel}` : ""}
          ${each.decision && html` <span class="dim">${each.decision}</span>`}</li>`)}</ol>
        ${audit.findings.map((each) => html`<p class="bad">The audit has been changed: ${each}</p>`)}`}
      <p><a href=${approvalPlace(approval.approval_id)}>The request</a></p>
    </details>`;
  }
}

/** The view. `run` is the record of the run, `path` its path in the API. */
export class Links extends Component {
  constructor() {
    super();
    this.state = { approvals: [], next: null, isRead: false, error: null, known: new Set() };
  }

  componentDidMount() {
    this.read();
    this.readRules();
  }

  /** Read which rules the reader may see: for the others, there is no page to lead to. */
  async readRules() {
    if (!this.props.run.deliveries?.length) return;
    try {
      const { scopes } = await get("/v1/me");
      if (!scopes.includes("automate")) return;
      const { automations } = await get(`/v1/automations?limit=${MOST_RULES}`);
      this.setState({ known: new Set(automations.map((each) => each.id)) });
    } catch {
      // The names of the rules are shown without links.
    }
  }

  async read(after = null) {
    try {
      const search = new URLSearchParams({ run_id: this.props.run.run_id, limit: "100", ...(after && { after }) });
      const { approvals, next } = await get(`/v1/approvals?${search}`);
      this.setState({ approvals: [...this.state.approvals, ...approvals], next, isRead: true, error: null });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  render({ run, path }, { approvals, next, isRead, error, known }) {
    return html`<div class="links-of">
      <h2>Decisions</h2>
      <${Notice} text=${error} />
      ${isRead && approvals.length === 0 && html`<p class="dim">Nobody was asked.</p>`}
      ${approvals.map((each) => html`<${Asked} key=${each.approval_id} approval=${each} />`)}
      ${next && html`<p class="more"><button type="button" class="quiet" onClick=${() => this.read(next)}>Earlier requests</button></p>`}
      <h2>Deliveries</h2>
      <${Deliveries} deliveries=${run.deliveries ?? []} known=${known} />
      <h2>Trace</h2>
      ${run.trace_id
        ? html`<p><${Id} text=${run.trace_id} label="the trace's id" /> ${run.trace_url && html`<${Outside} href=${run.trace_url}>Open the trace</${Outside}>`}</p>`
        : html`<p class="dim">The run has no trace (docs/operate/traces.md).</p>`}
      <h2>Its events as</h2>
      <ul class="links">
        ${DIALECTS.map((each) => html`<li><a target="_blank" rel="noopener" href=${`${path}/events?dialect=${each}`}>${each}</a></li>`)}
      </ul>
    </div>`;
  }
}

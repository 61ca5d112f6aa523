// @ts-check
// The screen of earlier decisions: who allowed what, and in which run.

import { get } from "../api.js";
import { call, short } from "../text.js";
import { outcomeOf } from "./decision.js";
import { approvalPlace, go, query, runPlace } from "./place.js";
import { Component, Notice, Time, html, instant } from "./view.js";

const NAMES = ["status", "tool", "agent", "user_id", "since"];
const STATUSES = ["decided", "expired", "withdrawn"];
const AGAIN_MS = 3000;
const PLACE = "/console/inbox/earlier";

export class Earlier extends Component {
  constructor() {
    super();
    this.state = { approvals: null, next: null, error: null, agents: [] };
    this.tools = new Set(); // those of all decisions that were read
  }

  componentDidMount() {
    this.read();
    get("/v1/agents").then(({ agents }) => this.setState({ agents }), () => {});
    const latest = new URLSearchParams({ status: this.wanted.status, limit: "100" });
    if (this.wanted.tool) get(`/v1/approvals?${latest}`).then(({ approvals }) => this.note(approvals), () => {});
  }

  /** Note which tools were decided about, from which the reader may choose. */
  note(approvals) {
    for (const { items } of approvals) for (const { tool } of items) if (tool) this.tools.add(tool);
    this.setState({});
  }

  componentDidUpdate(before) {
    if (before.search !== this.props.search) this.read();
  }

  componentWillUnmount() {
    clearTimeout(this.timer);
  }

  /** @returns {any} */
  get wanted() {
    const { since, status, ...rest } = query(this.props.search, NAMES);
    return { ...rest, status: STATUSES.includes(status) ? status : STATUSES[0], since: instant(since) };
  }

  async read(after = null) {
    clearTimeout(this.timer);
    const { search } = this.props;
    const wanted = Object.entries({ ...this.wanted, limit: "50", after }).filter(([, each]) => each);
    try {
      const { approvals, next } = await get(`/v1/approvals?${new URLSearchParams(wanted)}`);
      if (this.props.search !== search) return;
      this.setState({ approvals: [...(after ? this.state.approvals : []), ...approvals], next, error: null });
      this.note(approvals);
    } catch (error) {
      if (this.props.search !== search) return;
      this.setState({ error: error.message });
      if (error.mayPass) this.timer = setTimeout(() => this.read(after), AGAIN_MS);
    }
  }

  choose(name, value) {
    const chosen = Object.entries({ ...query(this.props.search, NAMES), [name]: value }).filter(([, each]) => each);
    go(`${PLACE}${chosen.length ? `?${new URLSearchParams(chosen)}` : ""}`, { replace: true });
  }

  render({ search }, { approvals, next, error, agents }) {
    const chosen = query(search, NAMES);
    const field = (name, label, hint, type = "search") => html`<label for=${`earlier-${name}`}>${label}
      <input id=${`earlier-${name}`} type=${type} value=${chosen[name]} placeholder=${hint} onChange=${(event) => this.choose(name, event.target.value.trim())} /></label>`;
    const select = (name, label, names) => html`<label for=${`earlier-${name}`}>${label}
      <select id=${`earlier-${name}`} value=${chosen[name]} onChange=${(event) => this.choose(name, event.target.value)}>
        <option value="">all</option>
        ${[...new Set([...names, chosen[name]])].filter(Boolean).map((each) => html`<option value=${each} selected=${each === chosen[name]}>${each}</option>`)}
      </select></label>`;
    return html`<main>
      <p class="crumbs"><a href="/console/inbox">Inbox</a></p>
      <div class="bar">
        <h1 tabindex="-1">Earlier decisions</h1>
        <form class="filters" role="search" aria-label="Decisions" onSubmit=${(event) => event.preventDefault()}>
          <label for="earlier-status">How it ended
            <select id="earlier-status" value=${this.wanted.status} onChange=${(event) => this.choose("status", event.target.value)}>
              ${STATUSES.map((each) => html`<option value=${each} selected=${each === this.wanted.status}>${each}</option>`)}
            </select></label>
          ${select("tool", "Tool", [...this.tools].sort())} ${select("agent", "Agent", agents.map(({ id }) => id))}
          ${field("user_id", "User", "a user's whole name")}
          ${field("since", "Asked since", "", "datetime-local")}
        </form>
      </div>
      <${Notice} text=${error} />
      ${approvals?.length > 0 && html`<table>
        <thead><tr><th scope="col">Outcome</th><th scope="col">What was asked</th><th scope="col">Run</th><th scope="col" class="wide">For</th><th scope="col" class="wide" aria-sort="descending">Asked ↓</th><th scope="col">Decided</th></tr></thead>
        <tbody>${approvals.map((each) => html`<tr key=${each.approval_id}>
          <td>${outcomeOf(each)}</td>
          <td class="name"><a href=${approvalPlace(each.approval_id)}>${each.items.map((item) => short(item.tool ? call(item.tool, item.args) : item.description ?? item.kind, 120)).join("; ")}</a>
            ${each.decision?.note && html`<p class="dim">${short(each.decision.note, 120)}</p>`}</td>
          <td><a href=${runPlace(each.run_id)}>${each.agent}</a></td>
          <td class="wide">${each.user_id}</td>
          <td class="wide"><${Time} at=${each.requested_at} /></td>
          <td><${Time} at=${each.decision?.at ?? each.updated_at} /></td>
        </tr>`)}</tbody>
      </table>`}
      ${approvals?.length === 0 && html`<div class="empty"><p>No request fits.</p><p>What still waits is in the <a href="/console/inbox">inbox</a>.</p></div>`}
      ${next && html`<p class="more"><button type="button" class="quiet" onClick=${() => this.read(next)}>Older decisions</button></p>`}
    </main>`;
  }
}

// @ts-check
// The screen of what waits for a person: the list by deadline, and the one that is chosen.

import { get } from "../api.js";
import { call, short } from "../text.js";
import { Countdown, Decision, areAlike, outcomeOf } from "./decision.js";
import { keyOf } from "./keys.js";
import { follow } from "./live.js";
import { approvalPlace, focusOn, go, runPlace } from "./place.js";
import { Component, Notice, Time, html } from "./view.js";
import { reconsider } from "./waiting.js";

const WAITS = ["requested", "voted", "taken_back", "remarked", "escalated", "reminded"];
const CHANGES = [...WAITS, "decided", "expired", "withdrawn"].map((each) => `approval.${each}`);
const AGAIN_MS = 3000;
const FOREVER = "9999";
const EARLIER = 50; // the agent's latest decisions, among which the last call of a tool is looked for

export class Inbox extends Component {
  constructor() {
    super();
    this.state = { approvals: new Map(), error: null, isLoading: true, lines: [], previous: new Map(), next: null, isPaused: false };
    this.waiting = []; // the changes that came while updates are paused
  }

  componentDidMount() {
    this.begin();
    this.keys = (event) => this.press(event);
    addEventListener("keydown", this.keys);
  }

  componentWillUnmount() {
    this.isGone = true;
    this.stream?.close();
    removeEventListener("keydown", this.keys);
  }

  componentDidUpdate(before) {
    if (before.approvalId !== this.props.approvalId) this.readLines();
  }

  begin() {
    // The stream begins before the list is read, so no change between the two is missed.
    this.stream?.close();
    this.stream = follow("/v1/approvals/events?", {
      names: ["ready", ...CHANGES],
      take: (message) => {
        reconsider();
        if (message.type === "ready") this.read();
        else if (this.state.isPaused) this.waiting.push(JSON.parse(message.data));
        else this.put([JSON.parse(message.data)]);
      },
      state: this.props.onLive,
      ended: async () => {
        if (!this.isGone) setTimeout(() => !this.isGone && this.begin(), AGAIN_MS);
        return false;
      },
    });
  }

  async read(after = null) {
    try {
      const search = new URLSearchParams({ status: "pending", ...(after && { after }) });
      const { approvals, next } = await get(`/v1/approvals?${search}`);
      if (this.isGone) return; // a late answer leads nobody back
      this.put(approvals);
      this.setState({ isLoading: false, error: null, next });
      const [first] = this.sorted();
      const isWide = matchMedia("(min-width: 48.01rem)").matches;
      if (first && isWide && !this.props.approvalId) go(approvalPlace(first.approval_id), { replace: true });
      else await this.readLines();
    } catch (error) {
      this.setState({ isLoading: false, error: error.message });
      if (error.mayPass) setTimeout(() => !this.isGone && this.read(after), AGAIN_MS);
    }
  }

  /** Take records. A record that is older than the one that is here changes nothing. */
  put(records) {
    const { approvals } = this.state;
    for (const record of records) {
      const known = approvals.get(record.approval_id);
      const isOlder = known && (known.updated_at > record.updated_at || (outcomeOf(known) && !outcomeOf(record)));
      // What was never pending here is no news of this list.
      if (isOlder || (!known && outcomeOf(record) && record.approval_id !== this.props.approvalId)) continue;
      approvals.set(record.approval_id, record);
    }
    this.setState({ approvals });
  }

  pause(isPaused) {
    this.setState({ isPaused });
    this.put(this.waiting.splice(0));
  }

  async readLines() {
    const id = this.props.approvalId;
    this.setState({ lines: [], previous: new Map(), error: null });
    if (!id) return;
    const path = `/v1/approvals/${encodeURIComponent(id)}`;
    try {
      if (!this.state.approvals.has(id)) this.put([await get(path)]);
      const { agent } = this.state.approvals.get(id);
      const earlier = new URLSearchParams({ status: "decided", agent, limit: `${EARLIER}` });
      const [{ lines }, { approvals }] = await Promise.all([get(`${path}/lines`), get(`/v1/approvals?${earlier}`)]);
      if (this.props.approvalId === id) this.setState({ lines, previous: lastCalls(approvals.filter((each) => each.approval_id !== id)) });
    } catch (error) {
      if (this.props.approvalId === id) this.setState({ error: error.message });
    }
  }

  /** The pending approvals by deadline, then those that were decided while they were shown. */
  sorted() {
    const rank = (each) => [outcomeOf(each) ? 1 : 0, each.expires_at ?? FOREVER, each.requested_at].join(" ");
    return [...this.state.approvals.values()].sort((one, other) => (rank(one) < rank(other) ? -1 : 1));
  }

  press(event) {
    const key = keyOf(event) ?? "";
    const step = { j: 1, k: -1 }[key];
    if (step) {
      const all = this.sorted();
      const at = all.findIndex((each) => each.approval_id === this.props.approvalId);
      const next = all[Math.max(0, Math.min(all.length - 1, at + step))];
      if (next) go(approvalPlace(next.approval_id), { replace: true });
      return;
    }
    // The keys only lead to the buttons: no decision is made by one stray key. What was not seen has
    // its button first, and a dangerous call a field.
    const wanted = { a: [".unseen button", ".danger input", "button.approve"], r: ["button.reject"] }[key];
    const found = wanted?.find((each) => document.querySelector(`.chosen ${each}`));
    if (!found) return;
    event.preventDefault(); // so that the key is not written into the field
    focusOn(`.chosen ${found}`);
  }

  render({ approvalId }, { approvals, error, isLoading, isPaused, lines, next, previous }) {
    const all = this.sorted();
    const pending = all.filter((each) => !outcomeOf(each)).length;
    const chosen = approvals.get(approvalId);
    const alike = chosen ? all.filter((each) => !outcomeOf(each) && areAlike(each, chosen)) : [];
    return html`<main class="inbox">
      <div class="bar">
        <h1 tabindex="-1">Inbox</h1>
        <p class="dim" role="status">${isLoading ? "" : `${pending} ${pending === 1 ? "waits" : "wait"} for a person`}</p>
        <button type="button" class="quiet" aria-pressed=${isPaused} onClick=${() => this.pause(!isPaused)}>${isPaused ? "Go on" : "Pause updates"}</button>
        <a href="/console/inbox/earlier">Earlier decisions</a>
        <p class="keys dim"><kbd>j</kbd> <kbd>k</kbd> choose, <kbd>a</kbd> <kbd>r</kbd> lead to the buttons</p>
      </div>
      <${Notice} text=${error} />
      ${!isLoading && !all.length && !chosen && !error && html`<div class="empty">
        <p>Nothing waits for a person.</p>
        <p>A tool call that a policy asks about appears here at once. Try it on the <a href="/">start page</a>.</p>
      </div>`}
      <div class=${`panes ${chosen ? "has-chosen" : ""}`}>
        ${all.length > 0 && html`<ul class="cards" aria-label="Approvals">
          ${all.map((each) => {
            const outcome = outcomeOf(each);
            return html`<li key=${each.approval_id} class=${outcome ? "is-settled" : ""}>
              <a href=${approvalPlace(each.approval_id)} aria-current=${each.approval_id === approvalId ? "true" : undefined} onClick=${() => requestAnimationFrame(() => focusOn(".chosen"))}>
                <strong>${lineOf(each)}</strong>
                ${each.items.length > 1 && html`<span class="dim"> and ${String(each.items.length - 1)} more</span>`}
                <span class="dim">${each.agent} for ${each.user_id}</span>
                <span>${outcome ?? (each.expires_at ? html`<${Countdown} until=${each.expires_at} />` : html`<span class="dim">no deadline</span>`)}</span>
              </a>
            </li>`;
          })}
          ${next && html`<li><button type="button" class="quiet" onClick=${() => this.read(next)}>More</button></li>`}
        </ul>`}
        ${chosen
          ? html`<div class="chosen" tabindex="-1" key=${`${approvalId} ${chosen.digest}`}>
              <p class="crumbs narrow-only"><a href="/console/inbox">All that wait</a></p>
              <p class="dim">${chosen.agent} asks for ${chosen.user_id}, <${Time} at=${chosen.requested_at} day=${true} />.${" "}
                <a href=${runPlace(chosen.run_id)}>The run</a></p>
              <${Decision} approval=${chosen} previous=${previous} alike=${alike} onDecided=${(record) => this.put([record])} />
              ${lines.length > 0 && html`<h2>The run's last lines</h2>
                <dl class="lines">${lines.map((each) => html`<div><dt>${each.what}</dt><dd>${each.text}</dd></div>`)}</dl>`}
            </div>`
          : all.length > 0 && html`<p class="dim choose">Choose one to see what it would do.</p>`}
      </div>
    </main>`;
  }
}

const lines = new WeakMap();

/** Return what an approval asks for as one line. It is made once: arguments may have a megabyte. */
function lineOf(approval) {
  if (!lines.has(approval)) {
    const [{ tool, args, description, kind }] = approval.items;
    lines.set(approval, short(tool ? call(tool, args) : description ?? kind, 90));
  }
  return lines.get(approval);
}

/** Return the last approved call of each tool. `approvals` are decided ones, the newest first. */
function lastCalls(approvals) {
  const found = new Map();
  for (const { items, decision } of approvals) {
    for (const { item_id: id, tool, args } of items) {
      const isApproved = decision?.items?.some((each) => each.item_id === id && each.decision === "approve");
      if (tool && isApproved && !found.has(tool)) found.set(tool, { args: args ?? {}, by: decision.by, at: decision.at });
    }
  }
  return found;
}

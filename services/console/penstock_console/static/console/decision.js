// @ts-check
// An approval that waits for a person: what is asked, and the decision on exactly that.

import { get, post } from "../api.js";
import { Answer } from "./form.js";
import { Component, Exact, Time, Tree, duration, html } from "./view.js";

// The kinds that can only be answered, and those that need a value (docs/approvals.md).
const ANSWERED_ONLY = new Set(["input", "feedback", "selection", "credential"]);
const NEEDS_VALUE = new Set([...ANSWERED_ONLY, "external", "long_running"]);
const SOON_MS = 60 * 60 * 1000;

/** How a decided, expired or withdrawn approval ended, as text; null while it waits. */
export function outcomeOf(approval) {
  if (approval.status === undefined || approval.status === "pending") return null;
  const { decision } = approval;
  if (decision) return `${decision.outcome} by ${decision.by}`;
  return approval.status === "expired" ? "nobody decided in time" : "the decision is not needed any more";
}

/** The time that is left to decide. It is drawn anew each second. */
export class Countdown extends Component {
  componentDidMount() {
    this.clock = setInterval(() => this.setState({}), 1000);
  }

  componentWillUnmount() {
    clearInterval(this.clock);
  }

  render({ until }) {
    const left = Date.parse(until) - Date.now();
    if (left <= 0) return html`<span class="countdown is-soon">the time is over</span>`;
    return html`<span class=${`countdown ${left < SOON_MS ? "is-soon" : ""}`}>${duration(left)} left</span>`;
  }
}

/**
 * The decision on an approval, in the form of `approval.requested` or of GET /v1/approvals. The
 * decision has the digest of what is shown: if the approval has changed, it is refused.
 */
export class Decision extends Component {
  constructor() {
    super();
    this.state = { note: "", values: {}, error: null, isBusy: false, settled: null };
  }

  async decide(decision) {
    const { approval, onDecided } = this.props;
    const { note, values } = this.state;
    this.setState({ isBusy: true, error: null });
    const path = `/v1/approvals/${encodeURIComponent(approval.approval_id)}`;
    try {
      const taken = await post(`${path}/decision`, {
        digest: approval.digest,
        ...(note.trim() && { note: note.trim() }),
        items: approval.items.map((item) => ({
          item_id: item.item_id,
          decision,
          ...(decision === "approve" && NEEDS_VALUE.has(item.kind) && { value: values[item.item_id] }),
        })),
      });
      const outcome = outcomeOf(taken);
      this.setState({ isBusy: false, settled: outcome ?? "your vote is taken; others must approve, too" });
      onDecided?.(taken);
    } catch (error) {
      let { message } = error;
      if (error.status === 409) {
        const now = await get(path).catch(() => null);
        const first = now && outcomeOf(now);
        if (first) message = `Somebody was first: ${first}.`;
        if (now) onDecided?.(now);
      }
      this.setState({ isBusy: false, error: message });
    }
  }

  render({ approval, outcome, heading = true }, { note, values, error, isBusy, settled }) {
    const id = `decision-${approval.approval_id}`;
    const done = outcome ?? settled ?? outcomeOf(approval);
    const mayReject = !approval.items.some((item) => ANSWERED_ONLY.has(item.kind));
    const lacks = approval.items.some((item) => NEEDS_VALUE.has(item.kind) && values[item.item_id] === undefined);
    const votes = (approval.votes ?? []).filter((vote) => !vote.void);
    const wrong = html`<p class="error" role="alert">${error}</p>`;
    const rulings = new Map((approval.rulings ?? []).map((each) => [each.item_id, each]));
    return html`<section class=${`decision ${done ? "is-settled" : ""}`} aria-label="A decision" data-approval=${approval.approval_id}>
      ${heading && html`<p class="ask">A person decides${approval.expires_at && !done ? html`: <${Countdown} until=${approval.expires_at} />` : ""}</p>`}
      ${approval.items.map((item, index) => {
        const ruling = rulings.get(item.item_id);
        return html`<div class="item" key=${item.item_id}>
          <p class="tool"><${Exact} text=${item.tool ?? item.kind} /></p>
          ${item.description && html`<p class="said"><${Exact} text=${item.description} /></p>`}
          ${Object.keys(item.args ?? {}).length ? html`<${Tree} value=${item.args} />` : html`<p class="dim">no arguments</p>`}
          ${ruling?.rule_id && html`<p class="dim">${ruling.rule_id === "default" ? "No rule of the policy decides this" : html`The policy's rule <code>${ruling.rule_id}</code> asks`}${ruling.note ? `: ${ruling.note}` : "."}</p>`}
          ${!done && NEEDS_VALUE.has(item.kind) && html`<div class="answer"><${Answer} id=${`${id}-${index}`} schema=${item.input_schema ?? {}} options=${item.options}
            set=${(value) => this.setState({ values: { ...this.state.values, [item.item_id]: value } })} /></div>`}
        </div>`;
      })}
      ${(approval.need ?? 1) > 1 && html`<p class="dim">${String(votes.length)} of ${String(approval.need)} people have approved.</p>`}
      ${votes.map((vote) => html`<p class="dim">${vote.by} has voted <${Time} at=${vote.at} />${vote.note ? `: ${vote.note}` : ""}</p>`)}
      ${done
        ? html`<p class="outcome" role="status">${done}${approval.decision?.note ? `: ${approval.decision.note}` : ""}</p>${wrong}`
        : html`<div class="foot">
            ${wrong}
            <label for=${`${id}-note`}>Note <input id=${`${id}-note`} value=${note} maxlength="2000" placeholder="for the agent and the record"
              onInput=${(event) => this.setState({ note: event.target.value })} /></label>
            <div class="buttons">
              <button type="button" class="approve" disabled=${isBusy || lacks} onClick=${() => this.decide("approve")}>
                ${NEEDS_VALUE.has(approval.items[0].kind) ? "Answer" : "Approve"}
              </button>
              ${mayReject && html`<button type="button" class="reject" disabled=${isBusy} onClick=${() => this.decide("reject")}>Reject</button>`}
            </div>
          </div>`}
    </section>`;
  }
}

// @ts-check
// An approval that waits for a person: what is asked, and the decision on exactly that.

import { get, post, remove } from "../api.js";
import { Answer } from "./form.js";
import { Seen } from "./seen.js";
import { Component, Exact, Said, Time, Tree, duration, html, sortedJson, timeText } from "./view.js";
import { reconsider } from "./waiting.js";

// The kinds that can only be answered, and those that need a value (docs/approvals.md).
const ANSWERED_ONLY = new Set(["input", "feedback", "selection", "credential"]);
const NEEDS_VALUE = new Set([...ANSWERED_ONLY, "external", "long_running"]);
const TAKES_VALUE = new Set([...NEEDS_VALUE, "budget"]);
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

/** Return who may decide, how many must approve, and what the deadline means, as sentences. */
export function termsOf({ deciders = [], need = 1, expires_at: deadline, on_deadline: then, escalations = [] }) {
  const named = ({ scope = "decide", roles = [], users = [], excluded = [] }) => {
    const people = [
      ...users.map((each) => (each === "requester" ? "whoever asks" : each)),
      ...roles.map((each) => `anybody with the role ${each}`),
    ];
    const but = excluded.map((each) => (each === "requester" ? "whoever asks" : each)).join(" and ");
    return `${people.join(" or ") || `anybody with the scope ${scope}`}${but ? `, but not ${but}` : ""}`;
  };
  return [
    ...deciders.map((each) => `May decide: ${named(each)}.`),
    ...(need > 1 ? [`${need} people must approve.`] : []),
    ...escalations.map(({ at, to }) => (to ? `From ${timeText(at)} on, also: ${named(to)}.` : `A reminder comes at ${timeText(at)}.`)),
    ...(deadline ? [`If nobody decides in time, ${AT_DEADLINE[then] ?? AT_DEADLINE.reject}.`] : []),
  ];
}

const AT_DEADLINE = { reject: "it is rejected", approve: "it is approved", leave: "the run stays paused" };

const isConfirmation = (approval) => approval.items.length === 1 && !TAKES_VALUE.has(approval.items[0].kind);

const asked = new WeakMap(); // what an approval asks for, as text: arguments may have a megabyte

const texts = new WeakMap(); // arguments as text, which are compared with each drawing

function textOf(args) {
  if (!texts.has(args)) texts.set(args, sortedJson(args));
  return texts.get(args);
}

function askedBy(approval) {
  if (!asked.has(approval)) {
    const { agent, items: [{ tool, args }], rulings = [] } = approval;
    asked.set(approval, sortedJson({ agent, tool, args: args ?? {}, isDangerous: Boolean(rulings[0]?.danger) }));
  }
  return asked.get(approval);
}

/** Whether two approvals ask for the same: one call of the same agent's tool with equal arguments. */
export function areAlike(one, other) {
  if (one === other || !isConfirmation(one) || !isConfirmation(other)) return false;
  return Boolean(one.items[0].tool) && askedBy(one) === askedBy(other);
}

function changedArgs(text) {
  try {
    const args = JSON.parse(text);
    return args !== null && typeof args === "object" && !Array.isArray(args) ? args : null;
  } catch {
    return null;
  }
}

const pathOf = (approval) => `/v1/approvals/${encodeURIComponent(approval.approval_id)}`;

/**
 * The decision on an approval, in the form of `approval.requested` or of GET /v1/approvals. The
 * decision has the digest of what is shown: if the approval has changed, it is refused.
 *
 * `outcome` is how it ended and `at` when, where the approval itself does not tell.
 * `previous` maps a tool to its last approved call, with `args`, `at` and `by`. `alike` are further
 * approvals that ask for the same.
 */
export class Decision extends Component {
  constructor(props) {
    super();
    // An event does not tell what the policy says of it, so the record is read.
    const mustRead = props.approval.rulings === undefined && !props.outcome;
    this.state = { note: "", values: {}, edits: {}, typed: "", record: null, error: null, isBusy: mustRead, settled: null, withAlike: false, me: null, to: null };
    this.seen = new Seen(() => this.setState({}, () => this.keepFocus()));
    this.mustRead = mustRead;
    this.wasSettled = Boolean(props.outcome ?? outcomeOf(props.approval));
  }

  componentDidUpdate() {
    if (this.foot) this.seen.look(this.base);
  }

  componentWillUnmount() {
    this.seen.stop();
  }

  /** When all was seen, the button that showed it is gone, and a further key must decide nothing. */
  keepFocus() {
    if (this.hasShown && !this.seen.unseen.length && document.activeElement === document.body) this.foot?.focus({ preventScroll: true });
  }

  /** After what a person has sent, the button that had the focus is gone, or has nothing to send. */
  refocus() {
    const { activeElement: used } = document;
    const isLost = used === document.body || (this.base.contains(used) && used?.matches(":disabled"));
    if (isLost) (this.base.querySelector(".hand-over input") ?? this.foot)?.focus({ preventScroll: true });
  }

  show() {
    this.hasShown = true;
    this.seen.show();
  }

  async componentDidMount() {
    if (this.foot) this.seen.look(this.base);
    if (!this.mustRead) return this.readMe();
    try {
      this.setState({ record: await get(pathOf(this.props.approval)), isBusy: false });
      await this.readMe();
    } catch (error) {
      // Nobody decides without knowing whether the policy calls it dangerous.
      this.setState({ error: `The approval cannot be read: ${error.message} Load the page again.` });
    }
  }

  /** Ask who the person is, where the person may have voted. */
  async readMe(approval = this.approval) {
    if (!approval.votes?.length || this.state.me) return;
    const me = await get("/v1/me").catch(() => null);
    this.setState({ me: me?.user_id ?? null });
  }

  get approval() {
    const { record } = this.state;
    const { approval, outcome } = this.props;
    // The event of the decision may have changed arguments since the record was read.
    return record && outcome ? { ...record, ...approval } : (record ?? approval);
  }

  body(approval, decision) {
    const { note, values, edits } = this.state;
    return {
      digest: approval.digest,
      ...(note.trim() && { note: note.trim() }),
      items: approval.items.map(({ item_id, kind }) => ({
        item_id,
        decision,
        ...(decision === "approve" && {
          ...(TAKES_VALUE.has(kind) && { value: values[item_id] }),
          ...(edits[item_id] !== undefined && { args: changedArgs(edits[item_id]) }),
        }),
      })),
    };
  }

  async decide(decision) {
    const { approval } = this;
    const { onDecided, alike = [] } = this.props;
    this.setState({ isBusy: true, error: null });
    try {
      const taken = await post(`${pathOf(approval)}/decision`, this.body(approval, decision));
      reconsider();
      const { edits, withAlike } = this.state;
      const others = withAlike && Object.keys(edits).length === 0 ? await this.decideAlike(alike, decision) : "";
      const outcome = outcomeOf(taken);
      const settled = `${outcome ?? "your vote is taken; others must approve, too"}${others}`;
      // The button that had the focus is gone.
      this.setState({ isBusy: false, settled, ...(this.mustRead && { record: taken }) }, () => this.said?.focus({ preventScroll: true }));
      onDecided?.(taken);
      if (!outcome) await this.readMe(taken);
    } catch (error) {
      let { message } = error;
      if (error.status === 409) {
        const now = await get(pathOf(approval)).catch(() => null);
        const first = now && outcomeOf(now);
        if (first) message = `Somebody was first: ${first}.`;
        if (now) onDecided?.(now);
      }
      this.setState({ isBusy: false, error: message }, () => this.said?.focus({ preventScroll: true }));
    }
  }

  /** Take back the person's own vote; the approval can then be decided anew. */
  takeBack() {
    return this.change(() => remove(`${pathOf(this.approval)}/decision`));
  }

  /** Send the note as a question or an answer, or with a handover to a person, without deciding. */
  say(kind, to = undefined) {
    const text = this.state.note.trim() || undefined;
    return this.change(() => post(`${pathOf(this.approval)}/remarks`, { kind, text, to }));
  }

  async change(send) {
    const { note } = this.state;
    this.setState({ isBusy: true, error: null });
    try {
      const record = await send();
      reconsider();
      // The person may have written the next note meanwhile: the change itself may come first, live.
      const isSame = this.state.note === note;
      this.setState({ isBusy: false, settled: null, to: null, ...(isSame && { note: "" }), ...(this.mustRead && { record }) }, () => this.refocus());
      this.props.onDecided?.(record);
    } catch (error) {
      this.setState({ isBusy: false, error: error.message }, () => this.refocus());
    }
  }

  /** Decide the approvals that ask for the same in the same way. Return how it went, as text. */
  async decideAlike(alike, decision) {
    const refused = [];
    for (const each of alike) {
      try {
        this.props.onDecided?.(await post(`${pathOf(each)}/decision`, this.body(each, decision)));
      } catch (error) {
        refused.push(error.message);
      }
    }
    const done = alike.length - refused.length;
    return `; ${done} of ${alike.length} others alike, too${refused.length ? ` (${refused[0]})` : ""}`;
  }

  render({ outcome, at, heading = true, previous, alike = [] }, { note, values, edits, typed, error, isBusy, settled, withAlike, me, to }) {
    const { approval } = this;
    const id = `decision-${approval.approval_id}`;
    const done = outcome ?? settled ?? outcomeOf(approval);
    const decidedAt = at ?? approval.decision?.at;
    const mayReject = approval.target === "workflows" || !approval.items.some((item) => ANSWERED_ONLY.has(item.kind));
    const lacks = approval.items.some((item) => NEEDS_VALUE.has(item.kind) && values[item.item_id] === undefined);
    const isWrong = Object.values(edits).some((text) => changedArgs(text) === null);
    const isUnseen = this.seen.unseen.length > 0;
    const votes = (approval.votes ?? []).filter((vote) => !vote.void);
    const wrong = html`<p class="error" role="alert"><${Said} text=${error ?? ""} /></p>`;
    const rulings = new Map((approval.rulings ?? []).map((each) => [each.item_id, each]));
    const dangerous = approval.items.filter((item) => rulings.get(item.item_id)?.danger);
    const toType = [...new Set(dangerous.map((item) => item.tool ?? item.kind))].join(", ");
    const terms = approval.rulings && !done ? termsOf(approval) : [];
    const others = [...new Set(alike.map((each) => each.user_id))].filter((each) => each !== approval.user_id);
    return html`<section class=${`decision ${done ? "is-settled" : ""}`} aria-label="A decision" data-approval=${approval.approval_id}>
      ${heading && html`<p class="ask">A person decides${approval.expires_at && !done ? html`: <${Countdown} until=${approval.expires_at} />` : ""}</p>`}
      ${approval.items.map((item, index) => html`<${Asked} key=${item.item_id} item=${item} id=${`${id}-${index}`} isOpen=${!done}
        ruling=${rulings.get(item.item_id)} previous=${previous?.get(item.tool)} edit=${done ? undefined : edits[item.item_id]}
        setValue=${(value) => this.setState((now) => ({ values: { ...now.values, [item.item_id]: value } }))}
        setEdit=${(text) => this.setState((now) => ({ edits: { ...now.edits, [item.item_id]: text } }))} />`)}
      ${terms.length > 0 && html`<details class="terms"><summary>What the policy says</summary>${terms.map((each) => html`<p>${each}</p>`)}</details>`}
      ${(approval.need ?? 1) > 1 && html`<p class="dim">${String(votes.length)} of ${String(approval.need)} people have approved.</p>`}
      ${votes.map((vote) => html`<p class="dim">${vote.by} has voted <${Time} at=${vote.at} />${vote.note ? `: ${vote.note}` : ""}
        ${vote.by === me && !vote.decider.token_id && !outcome && !outcomeOf(approval) && html`<button type="button" class="quiet small" disabled=${isBusy} onClick=${() => this.takeBack()}>Take back</button>`}</p>`)}
      <div role="log" aria-label="Remarks">
        ${(approval.remarks ?? []).map(({ kind, by, to, text }) => html`<p class="dim">${kind} of ${by}${to && ` to ${to}`}${text && html`: <${Exact} text=${text} />`}</p>`)}
      </div>
      ${done
        ? html`<p class="outcome" tabindex="-1" ref=${(said) => (this.said = said)} role=${settled || this.wasSettled ? "status" : "alert"}>${done}${approval.decision?.note ? `: ${approval.decision.note}` : ""}</p>
          ${decidedAt && html`<p class="dim">Decided <${Time} at=${decidedAt} /></p>`}${wrong}`
        : html`<div class="foot" tabindex="-1" ref=${(foot) => (this.foot = foot)}>
            ${wrong}
            ${isUnseen && this.seen.isKnown && html`<p class="unseen">To approve, see all of it first. <button type="button" class="quiet small" onClick=${() => this.show()}>Show what you have not seen</button></p>`}
            ${alike.length > 0 && Object.keys(edits).length === 0 && html`<label class="alike" for=${`${id}-alike`}><input id=${`${id}-alike`} type="checkbox" checked=${withAlike}
              onChange=${(event) => this.setState({ withAlike: event.target.checked })} />
              and ${alike.length === 1 ? "the other request" : `the ${alike.length} other requests`} for this tool with equal arguments${others.length > 0 && html`, also for <${Exact} text=${others.join(", ")} />`}</label>`}
            ${toType && html`<label class="danger" for=${`${id}-typed`}>Dangerous. To approve, type <strong><${Exact} text=${toType} /></strong>
              <input id=${`${id}-typed`} value=${typed} autocomplete="off" spellcheck="false" onInput=${(event) => this.setState({ typed: event.target.value })} /></label>`}
            <label for=${`${id}-note`}>Note <input id=${`${id}-note`} value=${note} maxlength="2000" placeholder="for the agent and the record"
              onInput=${(event) => this.setState({ note: event.target.value })} /></label>
            <div class="buttons">
              <button type="button" class="approve" disabled=${isBusy || isUnseen || lacks || isWrong || (toType !== "" && typed !== toType)} onClick=${() => this.decide("approve")}>
                ${NEEDS_VALUE.has(approval.items[0].kind) && approval.target !== "workflows" ? "Answer" : "Approve"}
              </button>
              ${mayReject && html`<button type="button" class="reject" disabled=${isBusy} onClick=${() => this.decide("reject")}>Reject</button>`}
              <button type="button" class="quiet" disabled=${isBusy || !note.trim()} title="Sends the note as a question to whoever asks" onClick=${() => this.say("question")}>Ask</button>
              ${(approval.remarks ?? []).some((each) => each.kind === "question") && html`<button type="button" class="quiet" disabled=${isBusy || !note.trim()} title="Sends the note as an answer" onClick=${() => this.say("answer")}>Answer the question</button>`}
              <button type="button" class="quiet" aria-expanded=${to !== null} onClick=${() => this.setState({ to: to === null ? "" : null })}>Hand over…</button>
            </div>
            ${to !== null && html`<form class="row hand-over" onSubmit=${(event) => (event.preventDefault(), this.say("handover", to.trim()))}>
              <label for=${`${id}-to`}>To <input id=${`${id}-to`} required value=${to} maxlength="256" autocomplete="off" placeholder="a person whom the policy lets decide"
                onInput=${(event) => this.setState({ to: event.target.value })} /></label>
              <button type="submit" class="quiet" disabled=${isBusy || !to.trim()} title="Sends the note, too">Hand over</button>
            </form>`}
          </div>`}
    </section>`;
  }
}

/** One item of an approval: the tool, its arguments, what they are compared with, and fields. */
function Asked({ item, id, isOpen, ruling, previous, edit, setValue, setEdit }) {
  const args = item.args ?? {};
  const edited = edit === undefined ? null : changedArgs(edit);
  const isVoted = item.requested_args !== undefined;
  const [before, about] = edited
    ? [args, textOf(edited) === textOf(args) ? null : html`As you have changed them.`]
    : isVoted
      ? [item.requested_args, html`A vote has changed these arguments.`]
      : previous
        ? [previous.args, html`${textOf(previous.args) === textOf(args) ? "The same arguments as" : "Compared with those"} of the last approved call, by ${previous.by}, <${Time} at=${previous.at} />.`]
        : [undefined, null];
  const shown = edited ?? args;
  const compared = before === undefined ? {} : { before };
  return html`<div class="item">
    <p class="tool"><${Exact} text=${item.tool ?? item.kind} /></p>
    ${item.description && html`<p class="said"><${Exact} text=${item.description} /></p>`}
    ${Object.keys(shown).length || before ? html`<${Tree} value=${shown} ...${compared} />` : html`<p class="dim">no arguments</p>`}
    <span class="end"></span>
    ${about && html`<p class="dim compared">${about}</p>`}
    ${ruling?.rule_id && html`<p class="dim">${ruling.rule_id === "default" ? "No rule of the policy decides this" : html`The policy's rule <code>${ruling.rule_id}</code> asks`}${ruling.note ? `: ${ruling.note}` : "."}</p>`}
    ${isOpen && TAKES_VALUE.has(item.kind) && html`<div class="answer"><${Answer} id=${id} schema=${item.input_schema ?? {}} options=${item.options} set=${setValue} /></div>`}
    ${isOpen && item.editable && !TAKES_VALUE.has(item.kind) && (edit === undefined
      ? html`<p><button type="button" class="quiet small" onClick=${() => setEdit(JSON.stringify(args, null, 2))}>Change the arguments</button></p>`
      : html`<label class="tall edit" for=${`${id}-args`}>Arguments, as JSON${changesOf(ruling)}
          <textarea id=${`${id}-args`} rows="5" spellcheck="false" value=${edit} aria-invalid=${edited === null} onInput=${(event) => setEdit(event.target.value)}></textarea>
          ${edited === null && html`<span class="bad">This is no JSON object.</span>`}</label>`)}
  </div>`;
}

function changesOf(ruling) {
  const paths = ruling?.edit ?? [];
  return paths.length === 0 || paths.some((each) => each === "*" || each === "args.*") ? "" : `; you may change ${paths.join(", ")}`;
}

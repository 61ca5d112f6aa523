// @ts-check
// The items of a transcript as elements: messages, tool calls, decisions in place, steps.

import { short } from "../text.js";
import { Decision } from "./decision.js";
import { focusOn, runPlace } from "./place.js";
import { Component, Growing, Notice, Status, Time, Tree, duration, html } from "./view.js";

const TOOL_WORDS = { waits: "waits for a person", called: "called", ok: "done" };

class Item extends Component {
  shouldComponentUpdate(next) {
    const { version } = this.props;
    return next.version.count !== version.count || next.version.isPast !== version.isPast;
  }

  render({ item, version }) {
    const show = SHOW[item.kind](item, version.isPast);
    return html`<li class=${`item-${item.kind} ${item.isBelow ? "is-below" : ""}`} data-key=${item.key} tabindex="-1">${show}</li>`;
  }
}

const SHOW = {
  asked: (item) => html`<p class="who">${item.who} <span class="dim"><${Time} at=${item.at} /></span></p><${Growing} className="text" text=${item.text} />
    ${item.input && html`<${Tree} value=${item.input} />`}`,
  message: (item) => html`<p class="who">${item.who ?? "assistant"}</p>
    <${Growing} className="text" text=${item.text} />
    ${item.error && html`<p class="bad">${item.error}</p>`}`,
  reasoning: (item) => html`<details>
    <summary>Reasoning</summary>
    <${Growing} className="text dim" text=${item.text} />
  </details>`,
  tool: (item) => html`<details>
    <summary>
      <span class="tool">${item.tool}</span>
      <span class="preview">${short(item.args ?? item.argsText ?? "", 80)}</span>
      <span class=${`state is-${item.state ?? "called"}`}>${TOOL_WORDS[item.state] ?? item.state ?? "called"}${item.took > 0.05 ? `, ${duration(item.took * 1000)}` : ""}</span>
    </summary>
    <p class="dim">Arguments${item.areEdited ? ", as a person changed them" : ""}</p>
    ${item.args ? html`<${Tree} value=${item.args} />` : html`<${Growing} className="text" text=${item.argsText ?? ""} />`}
    ${item.result !== undefined && html`<p class="dim">Result</p><${Tree} value=${item.result} />`}
    ${item.error && html`<p class="bad">${item.error}</p>`}
  </details>`,
  approval: (item, isPast) => html`<${Decision} approval=${item.approval}
    outcome=${item.outcome ?? (isPast ? "not decided at this point" : null)} at=${item.outcome && item.until} />`,
  note: (item) => html`<p class=${item.tone}>${item.text}</p>`,
  step: (item) => html`<p>
    <${Status} status=${item.state} /> <strong>${item.name}</strong>
    ${item.until && html` <span class="dim">${duration(Date.parse(item.until) - Date.parse(item.at))}</span>`}
    ${item.child && html` <a href=${runPlace(item.child)}>its run</a>`}
    ${item.takenFrom && html` <span class="dim">not done again: taken over from</span> <a class="taken" href=${runPlace(item.takenFrom.child_run_id ?? item.takenFrom.run_id)}>an earlier run</a>`}
  </p>
  ${item.task && html`<p class="dim">${short(item.task)}</p>`}
  ${item.error && html`<p class="bad">${item.error}</p>`}
  ${item.output !== undefined && item.output !== null && html`<details><summary>Output</summary><${Tree} value=${item.output} /></details>`}`,
  delivery: (item) => html`<p class=${item.state === "failed" ? "bad" : "dim"}>rule ${item.name}: ${item.state} ${short(item.result ?? "", 120)}</p>`,
  end: (item) => html`<p><${Status} status=${item.action} /> ${item.data.code ? `(${item.data.code}) ` : ""}${item.data.error ?? item.data.reason ?? ""} <span class="dim"><${Time} at=${item.at} /></span></p>`,
};

const PART = 300; // so many items are shown, the latest; and so many more at each request
const MOST = 600; // with more, the earliest of a transcript that grows are taken away
const BEFORE = 20; // items that are shown before one that is looked for
const NEAR_PX = 200;

function isAtEnd() {
  return scrollY + innerHeight > document.documentElement.scrollHeight - NEAR_PX;
}

/**
 * The list of the items, of which a run may have very many: only the latest are in the page, and
 * earlier ones at request. Where the run is watched again (`isPast`), nobody can decide. So many
 * earlier events are `unread`: `onEarlier` reads some of them, `onAll` all.
 */
export class Story extends Component {
  /** Show the item with this key, and give it the focus. */
  reveal(key) {
    const index = this.props.transcript.items.findIndex((each) => each.key === key);
    this.first = Math.max(0, Math.min(this.first, index - BEFORE));
    this.setState({}, () => {
      const found = `[data-key="${CSS.escape(key)}"]`;
      document.querySelector(found)?.scrollIntoView({ block: "center" });
      focusOn(found);
    });
  }

  /** Choose the first item that is shown. A reader who is not at the end keeps what is in view. */
  look(transcript) {
    const count = transcript.items.length;
    const isOther = transcript !== this.transcript;
    // The same run with earlier events: what was shown stays.
    if (isOther && this.transcript?.isPart && this.transcript.runId === transcript.runId) this.first += count - this.count;
    else if (isOther || (count > this.count && count - this.first > MOST && isAtEnd())) this.first = Math.max(0, count - PART);
    Object.assign(this, { transcript, count });
  }

  /** Show earlier items, of events that are read if need be. */
  async showEarlier() {
    this.setState({ isBusy: true, error: null });
    try {
      if (this.first === 0 && this.props.unread > 0) await this.props.onEarlier();
      this.first = Math.max(0, this.first - PART);
      this.setState({ isBusy: false });
    } catch (error) {
      this.setState({ isBusy: false, error: error.message });
    }
  }

  render({ transcript, isPast = false, unread = 0, onAll }, { isBusy = false, error = null }) {
    this.look(transcript);
    const { first } = this;
    const label = first > 0 ? `Show ${Math.min(PART, first)} of ${first.toLocaleString()} earlier items` : "Show earlier items";
    return html`${(first > 0 || unread > 0) && html`<p class="more"><button type="button" class="quiet" disabled=${isBusy} onClick=${() => this.showEarlier()}>${label}</button>
        ${unread > 0 && html` <span class="dim">${unread.toLocaleString()} earlier events are not read yet</span>
          <button type="button" class="quiet" onClick=${onAll}>Read all</button>`}</p>`}
      <${Notice} text=${error} />
      <ol class="transcript">
        ${transcript.items.slice(first).map((item) => html`<${Item} key=${item.key} item=${item} version=${{ count: item.version, isPast }} />`)}
      </ol>`;
  }
}

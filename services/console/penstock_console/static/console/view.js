// @ts-check
// The elements that all screens share. Text reaches a screen only through `html`, which marks the
// characters that cannot be seen.

import { Component, h, html as create } from "../vendor/htm-preact-3.1.1.js";
import { MOST_MARKS, eachPart, put } from "../text.js";

export { Component, render } from "../vendor/htm-preact-3.1.1.js";

const NAMED = ["title", "aria-label", "placeholder", "alt"];
const seen = new WeakSet();

/** Return the children for a text: the text, or its parts with a mark for each hidden character. */
function marked(text, strict = false) {
  const parts = [];
  eachPart(
    text,
    (plain) => parts.push(plain),
    (code) => parts.push(h("mark", null, code)),
    strict,
  );
  return parts.length === 1 ? parts[0] : parts;
}

/** Return the text for an attribute, which cannot contain marks. */
export function named(text) {
  let all = "";
  eachPart(text, (plain) => (all += plain), (code) => (all += `[${code}]`));
  return all;
}

function safe(node) {
  if (Array.isArray(node)) return node.map(safe);
  if (typeof node === "string") return marked(node);
  if (node === null || typeof node !== "object" || seen.has(node)) return node;
  seen.add(node);
  const { props, type } = node;
  if (typeof type === "string") {
    for (const name of NAMED) {
      if (typeof props[name] === "string") props[name] = named(props[name]);
    }
    if (props.href !== undefined && !/^\/(?![/\\])/u.test(props.href)) {
      throw new Error("a link leads out of this origin");
    }
  }
  if (props?.children !== undefined) props.children = safe(props.children);
  return node;
}

/** A tagged template for elements. Every text in it is shown with its hidden characters marked. */
export function html(strings, ...values) {
  return safe(create(strings, ...values));
}

/** Text that a person decides about: unusual spaces are marked, too. */
export function Exact({ text }) {
  return marked(text, true);
}

/** A link of the operator's settings to another site, in a tab of its own. */
export function Outside({ href, children }) {
  if (!/^https?:\/\//u.test(href)) throw new Error("a link to another site begins with http");
  return h("a", { href, target: "_blank", rel: "noopener noreferrer" }, children);
}

const PIECE = 8192; // characters of a text that are one block

/** Return where to end a piece of so many characters: at the end of a line, if there is one. */
function pieceEnd(text, most) {
  const line = text.lastIndexOf("\n", most);
  if (line > 0) return line;
  return /[\ud800-\udbff]/u.test(text[most - 1]) ? most + 1 : most;
}

/**
 * Text that grows, or is long. What comes is appended without a look at what is shown. A long text
 * is in pieces, of which a browser lays out only those in view: a line of a megabyte takes seconds.
 * With `isExact`, a person decides about it.
 */
export class Growing extends Component {
  shouldComponentUpdate({ text }) {
    if (text.startsWith(this.shown)) this.append(text.slice(this.shown.length));
    else this.begin(text);
    this.shown = text;
    return false;
  }

  componentDidMount() {
    this.shown = this.props.text;
    this.begin(this.shown);
  }

  begin(text) {
    this.base.replaceChildren();
    Object.assign(this, { piece: this.base, size: 0, marks: 0 });
    this.append(text);
  }

  append(text) {
    let rest = text;
    while (rest.length > PIECE - this.size) {
      const end = pieceEnd(rest, PIECE - this.size);
      this.put(rest.slice(0, end));
      rest = rest.slice(rest[end] === "\n" ? end + 1 : end);
      this.piece = document.createElement("div");
      this.piece.className = "piece";
      this.base.append(this.piece);
      this.size = 0;
    }
    this.put(rest);
  }

  put(text) {
    const before = this.piece.childElementCount;
    put(this.piece, text, { strict: this.props.isExact, mostMarks: MOST_MARKS - this.marks });
    this.marks += this.piece.childElementCount - before;
    this.size += text.length;
  }

  render({ className }) {
    return h("div", { class: className });
  }
}

const NEAR_PX = 60;
const BELOW_PX = 16; // room below the end

/** Scroll the box, or the page if there is none, so far that the end of the content is in view. */
export function showEnd(content, box = null) {
  const hidden = content.getBoundingClientRect().bottom + BELOW_PX - viewEnd(box);
  if (hidden > 0) (box ?? window).scrollBy({ top: hidden });
}

const viewEnd = (box) => (box ? box.getBoundingClientRect().bottom : innerHeight);

/**
 * Keep the end of `content` in view in the scrolled `box`, or on the page, while the reader is there,
 * whatever makes the content grow: an event, or the answer for which a decision waits. Return the
 * watcher.
 */
export function keepEnd(content, box = null, isWanted = () => true) {
  let height = 0; // at first, the reader is at the end
  const watcher = new ResizeObserver(() => {
    const wasAtEnd = content.getBoundingClientRect().top + height - viewEnd(box) < NEAR_PX;
    const hasGrown = content.offsetHeight > height;
    height = content.offsetHeight;
    if (wasAtEnd && hasGrown && isWanted()) showEnd(content, box);
  });
  watcher.observe(content);
  return watcher;
}

/** Text of Penstock: what is between backticks is code. */
export function Said({ text }) {
  const parts = text.split("`");
  const isCode = (at) => at % 2 === 1 && at < parts.length - 1;
  return parts.map((part, at) => (isCode(at) ? html`<code>${part}</code>` : marked(at % 2 ? `\`${part}` : part)));
}

/** What has gone wrong, if anything has. */
export function Notice({ text }) {
  return text ? html`<p class="notice" role="alert"><${Said} text=${text} /></p>` : null;
}

const MOST_ROWS = 12;
const rowsOf = (text) => Math.min(MOST_ROWS, text.split("\n").length);

/** A field for text, as high as the text is. */
export function Grows({ onInput, ...rest }) {
  const grow = (event) => {
    event.target.rows = rowsOf(event.target.value);
    onInput(event);
  };
  return html`<textarea class="grows" spellcheck="false" rows=${rowsOf(rest.value ?? "")} ...${rest} onInput=${grow}></textarea>`;
}

const STATUS_WORDS = { paused: "waits for a person" };

/** The word for the status of a run or of a step. */
export const statusWord = (status) => STATUS_WORDS[status] ?? status;

/** The status of a run or of a step as a sign and a word. */
export function Status({ status, more = "" }) {
  return html`<span class=${`status is-${status}`}>${statusWord(status)}${more}</span>`;
}

const DELIVERY_LOOKS = { waiting: "paused", delivered: "completed", failed: "failed" };

/** The status of a delivery of a rule. */
export function Delivered({ status }) {
  return html`<span class=${`status is-${DELIVERY_LOOKS[status] ?? "queued"}`}>${status}</span>`;
}

const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** Return a time in UTC in brackets, with its day if that is another; nothing for a reader in UTC. */
function inUtc(date) {
  if (date.getTimezoneOffset() === 0) return "";
  const [day, time] = date.toISOString().split("T");
  return ` (${date.getDate() === date.getUTCDate() ? "" : `${day} `}${time.slice(0, 5)} UTC)`;
}

/** Return a time as text: in the zone of the reader, and in UTC beside it. */
export function timeText(at) {
  const date = new Date(at);
  return `${DAY.format(date)}${inUtc(date)}`;
}

/** Return a time of the reader's zone, as a field for times has it, as the API wants it. */
export function instant(text) {
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? "" : time.toISOString();
}

/** A time in the zone of the reader, with UTC beside it; with `day`, also today's has its day. */
export function Time({ at, day = false }) {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return "";
  const isToday = !day && date.toDateString() === new Date().toDateString();
  return html`<time datetime=${date.toISOString()} title=${`${date.toISOString()} (UTC)`}
    >${(isToday ? CLOCK : DAY).format(date)}<span class="utc">${inUtc(date)}</span></time>`;
}

/** Return a duration as text, such as `1 m 5 s`. */
export function duration(ms) {
  if (!(ms >= 0)) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => s >= Number(size));
  const [big, small] = [units[first], units[first + 1]];
  const rest = small ? Math.floor((s % Number(big[1])) / Number(small[1])) : 0;
  return `${Math.floor(s / Number(big[1]))} ${big[0]}${rest ? ` ${rest} ${small[0]}` : ""}`;
}

/** Return an amount, which comes in millionths of the currency, as text. */
export function money(currency, micros) {
  return new Intl.NumberFormat(undefined, { style: "currency", currency, maximumFractionDigits: 6 }).format(micros / 1e6);
}

const LONG = 400;
const MAX_DEPTH = 20;
const ABSENT = Symbol("absent");

/** Return a JSON value as text with sorted keys: equal values have equal texts. */
export function sortedJson(value) {
  const sorted = (_, each) =>
    each !== null && typeof each === "object" && !Array.isArray(each)
      ? Object.fromEntries(Object.entries(each).sort(([one], [other]) => (one < other ? -1 : 1)))
      : each;
  return JSON.stringify(value, sorted) ?? "";
}

const isBranch = (value) => value !== null && typeof value === "object" && Object.keys(value).length > 0;

/** Return the members of a branch by their names, sorted. @returns {[string, any][]} */
function entriesOf(value) {
  if (Array.isArray(value)) return value.map((each, index) => [`[${index}]`, each]);
  return Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1));
}

function Leaf({ value }) {
  const text = sortedJson(value);
  if (text.length <= LONG) return html`<span class="value"><${Exact} text=${text} /></span>`;
  return html`<details class="long">
    <summary>${text.length.toLocaleString()} characters</summary>
    <${Growing} className="value" text=${text} isExact=${true} />
  </details>`;
}

/**
 * A JSON value as a tree with sorted keys. Long texts are folded. With `before`, each value that
 * differs from the one in `before` is marked, and stands beside that. Values may be large and do not
 * change, so a tree is drawn anew for another value only.
 */
export class Tree extends Component {
  shouldComponentUpdate({ value, before }) {
    return value !== this.props.value || before !== this.props.before;
  }

  render({ value, before = ABSENT, compares = before !== ABSENT, depth = 0 }) {
    if (isBranch(value) && depth < MAX_DEPTH) {
      const known = new Map(isBranch(before) && Array.isArray(before) === Array.isArray(value) ? entriesOf(before) : []);
      const entries = entriesOf(value);
      const names = new Set(entries.map(([key]) => key));
      const gone = [...known].filter(([key]) => !names.has(key));
      return html`<dl class="tree">
        ${entries.map(
          ([key, each]) => html`<div key=${key}>
            <dt><${Exact} text=${key} /></dt>
            <dd><${Tree} value=${each} before=${known.has(key) ? known.get(key) : ABSENT} compares=${compares} depth=${depth + 1} /></dd>
          </div>`,
        )}
        ${gone.map(
          ([key, each]) => html`<div key=${key} class="is-gone">
            <dt><${Exact} text=${key} /></dt>
            <dd><span class="differs">not there</span> <span class="was">before: <${Leaf} value=${each} /></span></dd>
          </div>`,
        )}
      </dl>`;
    }
    const leaf = html`<${Leaf} value=${value} />`;
    if (!compares || (before !== ABSENT && sortedJson(before) === sortedJson(value))) return leaf;
    return html`<span class="differs">${leaf}</span> <span class="was">${before === ABSENT ? "new" : html`before: <${Leaf} value=${before} />`}</span>`;
  }
}

/** An identifier, with a button that copies it. */
export class Id extends Component {
  async copy() {
    try {
      await navigator.clipboard.writeText(this.props.text);
      this.setState({ said: "copied" });
    } catch {
      this.setState({ said: "select it to copy" });
    }
    setTimeout(() => this.setState({ said: "" }), 1500);
  }

  render({ text, label }, { said }) {
    return html`<span class="id"
      ><code>${text}</code>
      <button type="button" class="quiet small" aria-label=${`Copy ${label}`} onClick=${() => this.copy()}>
        ${said || "Copy"}
      </button></span
    >`;
  }
}

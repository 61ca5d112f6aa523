// @ts-check
// The screen of the system: what `penstock doctor` says, what waits for each service, how full the
// streams are, and dead letters with their replay.

import { get, post } from "../api.js";
import { runPlace } from "./place.js";
import { Component, Notice, Said, Time, html } from "./view.js";

const LOOKS = { ok: "completed", wrong: "failed" };
const WORDS = { ok: "fine", wrong: "wrong" };
const ORDER = ["wrong", "ok"];
const UNITS = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"];
const FULL = 0.8; // as in the check `storage`

/** Return a number of bytes as text, such as `1.5 MB`. */
function size(bytes) {
  const power = Math.min(UNITS.length - 1, Math.max(0, Math.floor(Math.log10(bytes || 1) / 3)));
  return new Intl.NumberFormat(undefined, { style: "unit", unit: UNITS[power], maximumFractionDigits: 1 }).format(bytes / 1000 ** power);
}

export class System extends Component {
  constructor() {
    super();
    this.state = { told: null, letters: null, next: null, said: new Map(), error: null, at: null, isBusy: false };
  }

  componentDidMount() {
    this.read();
  }

  async read() {
    this.setState({ isBusy: true });
    try {
      const [told, { dead_letters: letters, next }] = await Promise.all([get("/v1/system"), get("/v1/dead-letters")]);
      this.setState({ told, letters, next, error: null, at: new Date() });
    } catch (error) {
      this.setState({ error: error.message });
    }
    this.setState({ isBusy: false });
  }

  async more() {
    try {
      const { dead_letters: further, next } = await get(`/v1/dead-letters?${new URLSearchParams({ after: this.state.next })}`);
      this.setState({ letters: [...this.state.letters, ...further], next });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  async replay(number) {
    const say = (text) => this.setState({ said: new Map([...this.state.said, [number, text]]) });
    try {
      say((await post(`/v1/dead-letters/${number}/replay`, {})).detail);
    } catch (error) {
      say(error.message);
    }
  }

  render(_, { told, letters, next, said, error, at, isBusy }) {
    return html`<main class="system">
      <div class="bar">
        <h1 tabindex="-1">System</h1>
        ${at && html`<p class="dim" role="status">as of <${Time} at=${at} /></p>`}
        <button type="button" class="quiet" disabled=${isBusy} onClick=${() => this.read()}>Look again</button>
      </div>
      <${Notice} text=${error} />
      ${told && html`<h2>Checks</h2><${Checks} findings=${told.findings} />
        <h2>What waits</h2><${Waiting} told=${told} />
        <h2>Streams</h2><${Streams} streams=${told.streams} />`}
      ${letters && html`<h2>Dead letters</h2>
        ${letters.length > 0
          ? html`<${Letters} letters=${letters} said=${said} onReplay=${(number) => this.replay(number)} />`
          : html`<div class="empty"><p>There are no dead letters.</p><p>A message that a service cannot process comes here, with the reason (docs/dead-letters.md).</p></div>`}`}
      ${next && html`<p class="more"><button type="button" class="quiet" onClick=${() => this.more()}>More</button></p>`}
    </main>`;
  }
}

function Checks({ findings }) {
  // What only a terminal can look at is one sentence, and not ten rows.
  const unchecked = findings.filter((each) => each.verdict === "not_checked");
  const sorted = findings
    .filter((each) => each.verdict !== "not_checked")
    .sort((one, other) => ORDER.indexOf(one.verdict) - ORDER.indexOf(other.verdict));
  return html`<table>
    <thead><tr><th scope="col">Verdict</th><th scope="col">Check</th><th scope="col">Finding</th></tr></thead>
    <tbody>${sorted.map((each) => html`<tr key=${`${each.check} ${each.text}`}>
      <td><span class=${`status is-${LOOKS[each.verdict]}`}>${WORDS[each.verdict]}</span></td>
      <td><code>${each.check}</code></td>
      <td class="name"><${Said} text=${each.text} />${each.to_do && html`<p class="dim">To do: <${Said} text=${each.to_do} /></p>`}</td>
    </tr>`)}</tbody>
  </table>
  ${unchecked.length > 0 && html`<p class="dim unchecked">Not checked from here: ${unchecked.map((each) => each.check).join(", ")}. To do: <${Said} text=${unchecked[0].to_do} />.</p>`}`;
}

const isIdle = (each) => each.polled && !each.waiting && !each.unacknowledged;

function Waiting({ told }) {
  const behind = told.partitions.reduce((sum, each) => sum + each.behind, 0);
  const held = told.partitions.filter((each) => each.held).length;
  const idle = told.consumers.filter(isIdle);
  const head = html`<thead><tr><th scope="col">Reader</th><th scope="col">Reads</th><th scope="col" class="number">Waiting</th><th scope="col" class="number">Under way</th><th scope="col">Process</th></tr></thead>`;
  const row = (each) => html`<tr key=${`${each.stream} ${each.name}`}>
    <td>${each.name}</td><td>${each.stream}</td>
    <td class="number" data-label="waiting:">${each.waiting.toLocaleString()}</td>
    <td class="number" data-label="under way:">${each.unacknowledged.toLocaleString()}</td>
    <td>${each.polled ? html`<span class="status is-completed">reads</span>` : html`<span class=${`status is-${each.waiting ? "failed" : "queued"}`}>none reads</span>`}</td>
  </tr>`;
  return html`<table>
    ${head}
    <tbody>
      <tr><td>normalizer</td><td>RAW</td><td class="number" data-label="waiting:">${behind.toLocaleString()}</td><td class="number"></td>
        <td>${String(held)} of ${String(told.partitions.length)} partitions are worked on</td></tr>
      ${told.consumers.filter((each) => !isIdle(each)).map(row)}
    </tbody>
  </table>
  ${idle.length > 0 && html`<details class="card idle"><summary>${idle.length === 1 ? "One reader has" : `${idle.length} readers have`} nothing to do</summary>
    <table>${head}<tbody>${idle.map(row)}</tbody></table>
  </details>`}`;
}

function Streams({ streams }) {
  const most = Math.max(1, ...streams.map((each) => each.bytes));
  return html`<details class="card"><summary>${String(streams.length)} streams and buckets with ${size(streams.reduce((sum, each) => sum + each.bytes, 0))}</summary>
    <table>
      <thead><tr><th scope="col">Stream</th><th scope="col" class="wide">Size</th><th scope="col" class="number">Stored</th><th scope="col" class="number">At most</th></tr></thead>
      <tbody>${[...streams].sort((one, other) => other.bytes - one.bytes).map((each) => {
        const isFull = each.max_bytes > 0 && each.bytes >= FULL * each.max_bytes;
        return html`<tr key=${each.name}>
          <td>${each.name}</td>
          <td class="wide"><span class=${`share ${isFull ? "is-full" : ""}`} style=${`width:${(100 * each.bytes) / most}%`}></span></td>
          <td class="number">${size(each.bytes)}</td>
          <td class="number" data-label="of">${each.max_bytes > 0 ? size(each.max_bytes) : "no limit"}</td>
        </tr>`;
      })}</tbody>
    </table>
  </details>`;
}

function Letters({ letters, said, onReplay }) {
  return html`<table>
    <thead><tr><th scope="col" class="number">Number</th><th scope="col">Service</th><th scope="col">Message</th><th scope="col">Reason</th><th scope="col" class="wide">At</th><th scope="col">Replay</th></tr></thead>
    <tbody>${letters.map((each) => html`<tr key=${each.number} data-letter=${each.number}>
      <td class="number">${String(each.number)}</td>
      <td>${each.service}</td>
      <td>${each.run_id ? html`<a href=${runPlace(each.run_id)}>${each.subject}</a>` : each.subject}</td>
      <td class="name">${each.reason}${said.has(each.number) && html`<p class="dim" role="status">${said.get(each.number)}</p>`}</td>
      <td class="wide"><${Time} at=${each.at} /></td>
      <td>${each.state === "replayed" ? html`<span class="dim">replayed <${Time} at=${each.state_at} /></span>`
        : html`<button type="button" class="quiet small" aria-label=${`Replay the dead letter ${each.number}`} onClick=${() => onReplay(each.number)}>Replay</button>`}</td>
    </tr>`)}</tbody>
  </table>`;
}

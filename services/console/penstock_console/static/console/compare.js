// @ts-check
// Two runs beside each other: their items aligned, and what differs marked.

import { get } from "../api.js";
import { Transcript } from "./fold.js";
import { runPlace } from "./place.js";
import { titleOf } from "./run_list.js";
import { Component, Notice, Status, Tree, duration, html, money, named } from "./view.js";

const MOST_EVENTS = 20_000;
const MOST_ITEMS = 1000; // the alignment compares each item with each
const SKIPPED = new Set(["note", "end"]);

/** Return what must be equal for two items to stand beside each other. */
function place(item) {
  return `${item.kind} ${item.tool ?? item.step ?? ""} ${item.isBelow ? "below" : ""}`;
}

/** Return what is compared of an item, as texts by name. */
function contents(item) {
  const all = {
    text: item.text,
    input: item.input,
    arguments: item.args ?? item.argsText,
    result: item.result,
    error: item.error,
    output: item.output,
    outcome: item.kind === "approval" ? item.outcome : item.state,
    asks: item.approval?.items.map(({ tool, args = {}, description = "" }) => ({ tool: tool ?? "", args, description })),
  };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined && value !== null));
}

const texts = new WeakMap();

/** Return the contents of an item as text. It is made once, because each item is compared with many. */
function textOf(item) {
  if (!texts.has(item)) texts.set(item, JSON.stringify(contents(item)));
  return texts.get(item);
}

const isSame = (one, other) => textOf(one) === textOf(other);

/**
 * Align two lists of items: rows with an item of each, or of one of them. Rows have as many pairs as
 * can be had in this order, and among these as many equal ones as can be had.
 */
export function aligned(left, right) {
  const width = right.length + 1;
  const best = new Float64Array((left.length + 1) * width);
  const gain = (i, j) => (place(left[i]) === place(right[j]) ? (isSame(left[i], right[j]) ? 1.001 : 1) : 0);
  for (let i = left.length - 1; i >= 0; i -= 1) {
    for (let j = right.length - 1; j >= 0; j -= 1) {
      const both = gain(i, j);
      const skip = Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
      best[i * width + j] = both ? Math.max(skip, both + best[(i + 1) * width + j + 1]) : skip;
    }
  }
  const rows = [];
  let [i, j] = [0, 0];
  while (i < left.length || j < right.length) {
    const both = i < left.length && j < right.length ? gain(i, j) : 0;
    if (both && best[i * width + j] === both + best[(i + 1) * width + j + 1]) rows.push([left[i++], right[j++]]);
    else if (j >= right.length || (i < left.length && best[(i + 1) * width + j] >= best[i * width + j + 1])) rows.push([left[i++], null]);
    else rows.push([null, right[j++]]);
  }
  return rows;
}

/** @typedef {{run: any, transcript: Transcript, items: any[], tookMs: number}} Side */

/**
 * Read a run with all its stored events. Throws Refused.
 * @returns {Promise<Side>}
 */
async function read(runId) {
  const path = `/v1/runs/${encodeURIComponent(runId)}`;
  const run = await get(path);
  const transcript = new Transcript(runId);
  let [after, count] = [null, 0];
  while (count < MOST_EVENTS) {
    const search = new URLSearchParams({ include: "children", limit: "1000", ...(after && { after }) });
    const { events, next } = await get(`${path}/events?${search}`);
    for (const each of events) transcript.take(each);
    count += events.length;
    if (!events.length || next === null || next === after) break;
    after = next;
  }
  const end = transcript.end ?? { timestamp: run.updated_at };
  const items = transcript.items.filter((each) => !SKIPPED.has(each.kind)).slice(0, MOST_ITEMS);
  return { run, transcript, items, tookMs: Date.parse(end.timestamp) - Date.parse(run.created_at) };
}

function Content({ item, differs }) {
  if (!item) return html`<div class="side is-missing"><span class="dim">not in this run</span></div>`;
  const all = Object.entries(contents(item));
  return html`<div class="side">
    <p class="whose">${item.kind === "tool" ? item.tool : item.kind === "step" ? item.name : item.kind === "approval" ? "A decision" : (item.who ?? item.kind)}</p>
    ${all.map(([name, value]) => html`<div class=${differs.has(name) ? "differs" : ""}>
      <p class="who">${name}</p>
      ${typeof value === "string" ? html`<p class="text">${value}</p>` : html`<${Tree} value=${value} />`}
    </div>`)}
  </div>`;
}

function differences(one, other) {
  if (!one || !other) return new Set();
  const [left, right] = [contents(one), contents(other)];
  return new Set(Object.keys({ ...left, ...right }).filter((name) => JSON.stringify(left[name]) !== JSON.stringify(right[name])));
}

export class Compare extends Component {
  constructor() {
    super();
    this.state = { sides: null, error: null, isOnlyDifferent: false };
  }

  componentDidMount() {
    this.read();
  }

  componentDidUpdate(before) {
    if (before.ids.join() !== this.props.ids.join()) this.read();
  }

  async read() {
    const { ids } = this.props;
    try {
      const sides = await Promise.all(ids.map(read));
      if (this.props.ids === ids || this.props.ids.join() === ids.join()) this.setState({ sides, error: null });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  render(_, { sides, error, isOnlyDifferent }) {
    if (!sides) {
      return html`<main class="compare"><div class="bar"><h1 tabindex="-1">Compare</h1></div>
        ${error ? html`<${Notice} text=${error} />` : html`<p class="dim">Loading…</p>`}</main>`;
    }
    const rows = aligned(sides[0].items, sides[1].items);
    const isDifferent = (row) => !row[0] || !row[1] || !isSame(row[0], row[1]);
    const count = rows.filter(isDifferent).length;
    /** @type {[string, (side: Side) => any][]} */
    const facts = [
      ["Status", ({ run }) => html`<${Status} status=${run.status} />`],
      ["Agent", ({ run }) => run.agent],
      ["Duration", ({ tookMs }) => duration(tookMs)],
      ["Tokens", ({ transcript: { usage } }) => (usage.calls ? `${usage.input} in, ${usage.output} out` : "not reported")],
      ["Cost", ({ transcript: { usage } }) => [...usage.micros].map(([currency, micros]) => money(currency, micros)).join(" + ") || "not known"],
    ];
    return html`<main class="compare">
      <div class="bar">
        <h1 tabindex="-1">Compare</h1>
        <p class="dim" role="status">${count === 0 ? "Nothing differs" : `${count} of ${rows.length} items differ`}</p>
        <label><input type="checkbox" checked=${isOnlyDifferent} onChange=${(event) => this.setState({ isOnlyDifferent: event.target.checked })} /> Only what differs</label>
      </div>
      <table class="heads">
        <thead><tr><th scope="col">About</th>${sides.map(({ run }) => html`<th scope="col"><a href=${runPlace(run.run_id)} title=${named(run.run_id)}>${titleOf(run, 80)}</a></th>`)}</tr></thead>
        <tbody>${facts.map(([name, show]) => html`<tr><th scope="row">${name}</th>${sides.map((side) => html`<td>${show(side)}</td>`)}</tr>`)}</tbody>
      </table>
      <ol class="rows">
        ${rows.filter((row) => !isOnlyDifferent || isDifferent(row)).map((row, index) => {
          const [one, other] = row;
          const differs = differences(one, other);
          return html`<li key=${index} class=${isDifferent(row) ? "is-different" : ""}>
            <p class="sign">${isDifferent(row) ? html`<span class="bad">${one && other ? "differs" : one ? "only the first" : "only the second"}</span>` : html`<span class="dim">equal</span>`}</p>
            <${Content} item=${one} differs=${differs} /><${Content} item=${other} differs=${differs} />
          </li>`;
        })}
      </ol>
    </main>`;
  }
}

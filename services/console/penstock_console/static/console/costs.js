// @ts-check
// The screen of what runs used and cost: sums by agent, user, day, model or tool, and the accounts of
// budgets.

import { get } from "../api.js";
import { go, query, runPlace } from "./place.js";
import { Component, Notice, Time, duration, html, money } from "./view.js";

const NAMES = ["by", "since", "until", "last"];
const GROUPS = ["agent", "user", "day", "model", "tool", "tenant"];
const DAYS = 30;
const DAY_MS = 86_400_000;
/** The hours of the spans that are chosen by a name. */
const LAST = { hour: 1, day: 24 };
const HOUR_MS = 3_600_000;
const COUNT = new Intl.NumberFormat();

/** Return the largest sum of the rows: in the currency that most rows have, else in tokens. */
function measureOf(rows) {
  const currencies = new Map();
  for (const row of rows) for (const each of Object.keys(row.cost_micros)) currencies.set(each, (currencies.get(each) ?? 0) + 1);
  const [[currency] = []] = [...currencies].sort(([, one], [, other]) => other - one);
  const read = currency ? (row) => row.cost_micros[currency] ?? 0 : tokensOf;
  return { read, most: Math.max(1, ...rows.map(read)), what: currency ?? "tokens" };
}

const tokensOf = (row) => row.input_tokens + row.output_tokens + row.total_tokens;

function Sum({ row }) {
  const costs = Object.entries(row.cost_micros).map(([currency, micros]) => money(currency, micros));
  return html`${costs.join(" + ")}${row.without_price > 0 && html` <span class="dim">${costs.length ? "and " : ""}${COUNT.format(row.without_price)} without a price</span>`}`;
}

export class Costs extends Component {
  constructor() {
    super();
    this.state = { found: null, next: null, error: null, accounts: [], nextAccounts: null };
  }

  componentDidMount() {
    this.read();
    this.readAccounts();
  }

  componentDidUpdate(before) {
    if (before.search !== this.props.search) this.read();
  }

  get wanted() {
    const { by, since, until, last } = query(this.props.search, NAMES);
    const first = new Date(Date.now() - DAYS * DAY_MS).toISOString().slice(0, 10);
    const group = GROUPS.includes(by) ? by : "agent";
    return last in LAST ? { by: group, last } : { by: group, since: since || first, until };
  }

  async read(after = null) {
    const { search } = this.props;
    const { by, since, until, last } = this.wanted;
    const begun = last && new Date(Date.now() - LAST[last] * HOUR_MS).toISOString();
    const asked = new URLSearchParams({ by, ...(begun ? { runs_since: begun } : { since, ...(until && { until }) }), ...(after && { after }) });
    try {
      const page = await get(`/v1/costs?${asked}`);
      if (this.props.search !== search) return;
      const costs = after ? [...this.state.found.costs, ...page.costs] : page.costs;
      this.setState({ found: { ...page, costs }, next: page.next, error: null });
    } catch (error) {
      if (this.props.search === search) this.setState({ error: error.message });
    }
  }

  async readAccounts(after = null) {
    try {
      const { accounts, next } = await get(`/v1/budgets/accounts${after ? `?${new URLSearchParams({ after })}` : ""}`);
      this.setState({ accounts: [...(after ? this.state.accounts : []), ...accounts], nextAccounts: next });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  choose(name, value) {
    const chosen = { ...query(this.props.search, NAMES), [name]: value };
    const search = new URLSearchParams(Object.entries(chosen).filter(([, each]) => each));
    go(`/console/costs${search.size ? `?${search}` : ""}`, { replace: true });
  }

  place(by) {
    const search = new URLSearchParams(Object.entries({ ...query(this.props.search, NAMES), by }).filter(([, each]) => each));
    return `/console/costs?${search}`;
  }

  render(_, { found, next, error, accounts, nextAccounts }) {
    const { by, since, until, last = "" } = this.wanted;
    const day = (name, label, value) => html`<label for=${`costs-${name}`}>${label}
      <input id=${`costs-${name}`} type="date" value=${value} onChange=${(event) => this.choose(name, event.target.value)} /></label>`;
    return html`<main>
      <div class="bar">
        <h1 tabindex="-1">Costs</h1>
        <nav class="choices" aria-label="Sums by">
          ${GROUPS.map((each) => html`<a href=${this.place(each)} aria-current=${each === by ? "true" : undefined}>by ${each}</a>`)}
        </nav>
        <form class="filters" aria-label="Time (days are UTC)" onSubmit=${(event) => event.preventDefault()}>
          <label for="costs-last">Of
            <select id="costs-last" value=${last} onChange=${(event) => this.choose("last", event.target.value)}>
              <option value="">some days</option>
              ${Object.entries(LAST).map(([name, hours]) => html`<option value=${name} selected=${name === last}>the runs of the last ${hours === 1 ? "hour" : `${hours} hours`}</option>`)}
            </select></label>
          ${!last && html`${day("since", "From", since)} ${day("until", "Before", until)}`}
        </form>
      </div>
      <${Notice} text=${error} />
      ${found && this.table(found, by)}
      ${next && html`<p class="more"><button type="button" class="quiet" onClick=${() => this.read(next)}>More</button></p>`}
      ${accounts.length > 0 && html`<h2 id="accounts">Budgets</h2><${Accounts} accounts=${accounts} />
        <p class="dim">A run that has used up a budget that asks waits in the <a href="/console/inbox">inbox</a>: to approve raises its limit.</p>`}
      ${nextAccounts && html`<p class="more"><button type="button" class="quiet" onClick=${() => this.readAccounts(nextAccounts)}>More budgets</button></p>`}
    </main>`;
  }

  table({ costs, total, by }, wanted) {
    if (by !== wanted) return null; // the sums by something else are still being read
    if (!costs.length) {
      return html`<div class="empty">
        <p>No run of this time has used a model or a tool that costs.</p>
        <p>An agent server that tells its tokens has sums here; prices are set as docs/costs.md says.</p>
      </div>`;
    }
    const { read, most, what } = measureOf(costs);
    const cells = (row) => html`<td class="number"><${Sum} row=${row} /></td>
      <td class="number" data-label="read:">${COUNT.format(row.input_tokens + row.total_tokens)}</td>
      <td class="number" data-label="written:">${COUNT.format(row.output_tokens)}</td>
      <td class="number wide">${COUNT.format(row.calls)}</td>
      <td class="number wide">${COUNT.format(row.tool_calls)}</td>`;
    const link = { agent: "agent", user: "user_id" }[by];
    const name = (row) => row[by] || html`<span class="dim">none</span>`;
    return html`<table class="sums">
      <thead><tr>
        <th scope="col">${by[0].toUpperCase() + by.slice(1)}</th><th scope="col" class="wide">Share of ${what}</th><th scope="col" class="number">Cost</th>
        <th scope="col" class="number">Tokens read</th><th scope="col" class="number">written</th>
        <th scope="col" class="number wide">Model calls</th><th scope="col" class="number wide">Priced tool calls</th>
      </tr></thead>
      <tbody>
        ${costs.map((row) => html`<tr key=${row[by]}>
          <td class="name">${link && row[by] ? html`<a href=${`/console/runs?${new URLSearchParams({ [link]: row[by] })}`}>${row[by]}</a>` : name(row)}</td>
          <td class="wide"><span class="share" style=${`width:${(100 * read(row)) / most}%`}></span></td>
          ${cells(row)}
        </tr>`)}
      </tbody>
      <tfoot><tr><th scope="row">All</th><td class="wide"></td>${cells(total)}</tr></tfoot>
    </table>`;
  }
}

const NEARLY = 0.8;
const DIMENSIONS = {
  cost: ["cost", (count, currency) => money(currency ?? "EUR", count)],
  time: ["time", (count) => duration(count * 1000) || "0 s"],
  tokens: ["tokens", (count) => COUNT.format(count)],
  tool_calls: ["tool calls", (count) => COUNT.format(count)],
  model_calls: ["model calls", (count) => COUNT.format(count)],
  same_call: ["equal calls", (count) => COUNT.format(count)],
};

/** The accounts of budgets: what is used and set aside of each limit, the fullest first. */
function Accounts({ accounts }) {
  const sorted = [...accounts].sort((one, other) => other.share - one.share);
  return html`<table class="accounts" aria-labelledby="accounts">
    <thead><tr><th scope="col">Budget</th><th scope="col">Of</th><th scope="col">Used</th><th scope="col" class="number">Open runs</th><th scope="col" class="wide">Begins anew</th></tr></thead>
    <tbody>${sorted.map((each) => html`<tr key=${`${each.budget} ${each.subject} ${each.tenant}`}>
      <td>${each.budget}</td>
      <td>${each.per} ${each.per === "run" ? html`<a href=${runPlace(each.subject)}>${each.subject}</a>` : each.subject}${each.tenant && html`<span class="dim"> of ${each.tenant}</span>`}</td>
      <td class="name">${each.rooms.map((room) => html`<${Room} key=${room.dimension} room=${room} currency=${each.currency} />`)}
        ${each.calls_without_cost > 0 && html`<p class="bad">${COUNT.format(each.calls_without_cost)} calls without a price do not count as cost</p>`}</td>
      <td class="number" data-label="open runs:">${COUNT.format(each.open_runs)}</td>
      <td class="wide">${each.window_ends_at && html`<${Time} at=${each.window_ends_at} day=${true} />`}</td>
    </tr>`)}</tbody>
  </table>`;
}

function Room({ room, currency }) {
  const [name, show] = DIMENSIONS[room.dimension] ?? [room.dimension, (count) => COUNT.format(count)];
  const share = room.limit > 0 ? Math.min(1, (room.used + room.reserved) / room.limit) : 1;
  const aside = room.reserved > 0 ? `, ${show(room.reserved, currency)} set aside` : "";
  return html`<p><span class=${`share ${share >= NEARLY ? "is-full" : ""}`} style=${`width:${100 * share}%`}></span>
    ${name}: ${show(room.used, currency)} of ${show(room.limit, currency)}${aside}</p>`;
}

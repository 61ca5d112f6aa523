// @ts-check
// The screen of all runs: pages of the API, then lifecycle events as they come.

import { get, getDated } from "../api.js";
import { short } from "../text.js";
import { keyOf } from "./keys.js";
import { follow, oncePerFrame } from "./live.js";
import { approvalPlace, focusOn, go, query, runPlace } from "./place.js";
import { ENDED, RunList, tagsOf, titleOf } from "./run_list.js";
import { Component, Notice, Status, Time, duration, html, instant, money, statusWord } from "./view.js";
import { reconsider } from "./waiting.js";

const PAGE = 50;
const PART = 10; // the rows of a list that is a part of another screen
// The stream begins so long before the answer of the list, since a list may be a moment behind.
const OVERLAP_MS = 30_000;
const AGAIN_MS = 3000;
const SUMS_MS = 3000; // lists know the costs of a run so long after its end
const FILTERS = ["agent", "user_id", "tenant", "session_id", "text", "since", "until"];
const FOLDED = ["user_id", "tenant", "session_id", "since", "until"];
const STATUSES = ["queued", "running", "paused", "completed", "failed", "cancelled"];

/**
 * Return the filters in a query: a text for each, and lists of statuses and tags.
 * @returns {any}
 */
function filtersOf(search) {
  const sent = new URLSearchParams(search);
  return { ...query(search, FILTERS), status: [...new Set(sent.getAll("status"))], tags: sent.getAll("tag") };
}

/** Return the address of the list with these filters. */
function placeOf({ status, tags, ...filters }) {
  const chosen = Object.entries(filters).filter(([, each]) => each);
  const search = new URLSearchParams([...lists(status, []), ...chosen, ...lists([], tags)]);
  return `/console/runs${search.size ? `?${search}` : ""}`;
}

const lists = (status, tags) => [...status.map((each) => ["status", each]), ...tags.map((each) => ["tag", each])];

function path(filters, more = {}) {
  const { since, until, status, tags, ...rest } = filters;
  const times = { since: instant(since), until: instant(until) };
  const wanted = Object.entries({ ...rest, ...times, ...more }).filter(([, value]) => value !== "");
  const search = new URLSearchParams([
    ...wanted,
    ...lists(status, tags),
    ["parent_run_id", ""],
    ["limit", `${PAGE}`],
  ]);
  return `/v1/runs?${search}`;
}

const usageOf = (run) => run.usage_with_children ?? run.usage ?? {};

function tokensOf(run) {
  const { input_tokens: read = 0, output_tokens: wrote = 0 } = usageOf(run);
  return read + wrote ? (read + wrote).toLocaleString() : "";
}

function costOf(run) {
  const { cost_micros: micros = {}, without_price: unknown = 0 } = usageOf(run);
  const known = Object.entries(micros).map(([currency, each]) => money(currency, each)).join(" + ");
  return `${known}${unknown ? (known ? " and more" : "not known") : ""}`;
}

export class Runs extends Component {
  constructor() {
    super();
    this.waiting = [];
    this.state = { agents: [], open: new Set(), isPaused: false, waiting: 0, now: Date.now() };
    this.draw = oncePerFrame(() => this.setState({}));
  }

  componentDidMount() {
    this.begin();
    get("/v1/agents").then(({ agents }) => this.setState({ agents }), () => {});
    this.clock = setInterval(() => this.setState({ now: Date.now() }), 1000);
    this.keys = (event) => this.press(event);
    addEventListener("keydown", this.keys);
  }

  componentWillUnmount() {
    this.isGone = true;
    this.stream?.close();
    clearInterval(this.clock);
    clearTimeout(this.timer);
    removeEventListener("keydown", this.keys);
  }

  componentDidUpdate(before) {
    if (before.search !== this.props.search) this.begin();
  }

  async begin() {
    this.stream?.close();
    clearTimeout(this.timer);
    const asked = filtersOf(this.props.search);
    const list = new RunList(asked);
    this.wanted = list;
    this.waiting = [];
    this.setState({ isLoading: true, waiting: 0, isPaused: false });
    try {
      const { body, date } = await getDated(path(asked));
      if (this.wanted !== list || this.isGone) return;
      list.add(body.runs);
      this.list = list;
      this.setState({ isLoading: false, error: null, next: body.next });
      const since = new Date(date.getTime() - OVERLAP_MS).toISOString();
      this.stream = follow(`/v1/events?subjects=lifecycle.*&names=off&since=${since}`, {
        take: (message) => this.take(list, JSON.parse(message.data)),
        state: this.props.onLive,
        ended: async () => {
          // The cursor may have expired: the list is read again.
          if (this.wanted === list) this.beginLater();
          return false;
        },
      });
    } catch (error) {
      if (this.wanted !== list) return;
      this.setState({ isLoading: false, error: error.message });
      if (error.mayPass) this.beginLater();
    }
  }

  beginLater() {
    clearTimeout(this.timer);
    if (!this.isGone) this.timer = setTimeout(() => this.begin(), AGAIN_MS);
  }

  async take(list, event) {
    if (this.list !== list) return;
    if (this.state.isPaused) {
      this.waiting.push(event);
      this.setState({ waiting: this.waiting.length });
      return;
    }
    if (["paused", "resumed"].includes(event.event.action)) reconsider();
    const found = list.apply(event);
    if (found === "unknown") {
      const record = await get(`/v1/runs/${encodeURIComponent(event.run_id)}`).catch(() => null);
      if (record && this.list === list) list.add([record]);
    }
    if (found) this.draw();
    const isNamed = event.event.action !== "started" || event.data.message;
    if (found === "shown" && (ENDED.has(event.event.action) || !isNamed)) {
      setTimeout(() => this.readRecord(list, event.run_id), isNamed ? SUMS_MS : 0);
    }
  }

  /** Read the record of a run, for what it has cost, or for what it is about. */
  async readRecord(list, runId) {
    if (this.isGone || this.list !== list || document.hidden) return;
    const record = await get(`/v1/runs/${encodeURIComponent(runId)}`).catch(() => null);
    if (!record || this.isGone) return;
    list.add([record]);
    this.draw();
  }

  pause(isPaused) {
    const waiting = this.waiting ?? [];
    this.waiting = [];
    this.setState({ isPaused, waiting: 0 }, () => {
      for (const event of waiting) this.take(this.list, event);
    });
  }

  async more() {
    const { list } = this;
    const { next } = this.state;
    this.setState({ next: null });
    try {
      const { runs, next: after } = await get(path(list.filters, { before: next }));
      if (this.list !== list) return;
      list.add(runs);
      this.setState({ next: after });
    } catch (error) {
      this.setState({ error: error.message, next });
    }
  }

  async unfold(runId) {
    const { open } = this.state;
    if (!open.delete(runId)) {
      open.add(runId);
      const { list } = this;
      const search = new URLSearchParams({ parent_run_id: runId, limit: "1000" });
      get(`/v1/runs?${search}`).then(
        ({ runs }) => {
          list.add(runs);
          this.setState({});
        },
        (error) => this.setState({ error: error.message }),
      );
    }
    this.setState({ open });
  }

  press(event) {
    const key = keyOf(event) ?? "";
    if (key === "/") {
      event.preventDefault();
      document.getElementById("filter-text")?.focus();
    }
    const step = { j: 1, k: -1 }[key];
    if (!step) return;
    const links = [...document.querySelectorAll("a.run-link")];
    const at = links.indexOf(document.activeElement);
    const next = links[Math.max(0, Math.min(links.length - 1, at + step))];
    if (next instanceof HTMLElement) next.focus();
  }

  choose(name, value) {
    go(placeOf({ ...filtersOf(this.props.search), [name]: value }), { replace: true });
  }

  render({ search, isPart }, { agents, error, isLoading, isPaused, next, waiting }) {
    const filters = filtersOf(search);
    const rows = this.list?.rows ?? [];
    if (isPart) {
      return html`<section aria-labelledby="latest">
        <h2 id="latest">Latest runs</h2>
        <${Notice} text=${error} />
        ${this.table(rows.slice(0, PART))}
        ${!isLoading && !error && rows.length === 0 && this.nothing(filters)}
        ${rows.length > PART && html`<p class="more"><a href="/console/runs">All runs</a></p>`}
      </section>`;
    }
    const field = (name, label, hint, type = "search") => html`<label for=${`filter-${name}`}>
      ${label}
      <input id=${`filter-${name}`} type=${type} value=${filters[name]} placeholder=${hint}
        onChange=${(event) => this.choose(name, event.target.value.trim())} />
    </label>`;
    return html`<main>
      <div class="bar">
        <h1 tabindex="-1">Runs</h1>
        <form class="filters" role="search" aria-label="Runs" onSubmit=${(event) => event.preventDefault()}>
          ${this.statusField(filters)}
          <label for="filter-agent">Agent
            <select id="filter-agent" value=${filters.agent} onChange=${(event) => this.choose("agent", event.target.value)}>
              <option value="">all</option>
              ${agents.map(({ id }) => html`<option value=${id} selected=${id === filters.agent}>${id}</option>`)}
            </select></label>
          ${field("text", "Message", "a part of its text")}
          ${this.tagField(filters)}
          <details open=${FOLDED.some((each) => filters[each])}>
            <summary>More filters</summary>
            <div class="filters">
              ${field("user_id", "User", "a user's name")}
              ${(filters.tenant || rows.some((each) => each.tenant)) && field("tenant", "Tenant", "a tenant's name")}
              ${field("session_id", "Session", "a session's id")}
              ${field("since", "Started since", "", "datetime-local")}
              ${field("until", "Started before", "", "datetime-local")}
            </div>
          </details>
        </form>
        <button type="button" class="quiet" aria-pressed=${isPaused} onClick=${() => this.pause(!isPaused)}>
          ${isPaused ? `Show ${waiting} ${waiting === 1 ? "change" : "changes"}` : "Pause updates"}
        </button>
      </div>
      <${Notice} text=${error} />
      ${this.table(rows)}
      ${!isLoading && !error && rows.length === 0 && this.nothing(filters)}
      ${next && html`<p class="more"><button type="button" class="quiet" onClick=${() => this.more()}>Older runs</button></p>`}
    </main>`;
  }

  /** A field that adds a status to the filters, of which one must fit. */
  statusField({ status }) {
    const add = ({ target }) => {
      const { value } = target;
      target.value = "";
      if (value) this.choose("status", [...status, value]);
    };
    return html`<label for="filter-status">Status
        <select id="filter-status" value="" onChange=${add}>
          <option value="">${status.length ? "or also…" : "all"}</option>
          ${STATUSES.filter((each) => !status.includes(each)).map((each) => html`<option value=${each}>${statusWord(each)}</option>`)}
        </select></label>
      ${this.chosen("status", "#filter-status", status, statusWord)}`;
  }

  /** A button for each chosen value of a filter, which removes it. */
  chosen(name, field, values, wordOf) {
    const without = (value) => this.choose(name, values.filter((each) => each !== value));
    return values.map((value) => html`<button type="button" class="tag" key=${value} aria-label=${`Remove the filter ${wordOf(value)}`}
      onClick=${() => (without(value), focusOn(field))}>${wordOf(value)} ×</button>`);
  }

  /** A field that adds a tag to the filters, of which all must fit. */
  tagField({ tags }) {
    const add = ({ target }) => {
      const tag = target.value.trim();
      target.setCustomValidity(!tag || /[^=]=[^]/u.test(tag) ? "" : "Write a tag as key=value.");
      if (!target.reportValidity() || !tag || tags.includes(tag)) return;
      target.value = "";
      this.choose("tags", [...tags, tag]);
    };
    return html`<label for="filter-tag">Tag
        <input id="filter-tag" type="search" placeholder="key=value" onChange=${add} /></label>
      ${this.chosen("tags", "#filter-tag", tags, (tag) => tag)}`;
  }

  table(rows) {
    if (!rows.length) return null;
    return html`<table class="runs">
      <thead>
        <tr>
          <th scope="col">Status</th>
          <th scope="col">Run</th>
          <th scope="col">Agent</th>
          <th scope="col" class="wide">User</th>
          <th scope="col">Started</th>
          <th scope="col" class="number">Duration</th>
          <th scope="col" class="number wide">Tokens</th>
          <th scope="col" class="number wide">Cost</th>
        </tr>
      </thead>
      <tbody>
        ${rows.map((run) => this.rows(run, 0))}
      </tbody>
    </table>`;
  }

  rows(run, depth) {
    const isOpen = this.state.open.has(run.run_id);
    const below = this.list.below(run.run_id);
    const until = ENDED.has(run.status) ? Date.parse(run.updated_at) : Math.max(this.state.now, Date.parse(run.updated_at));
    const mayUnfold = run.target === "workflows" || below.length > 0;
    const name = titleOf(run, 160);
    return [
      html`<tr key=${run.run_id} class=${`depth-${Math.min(depth, 3)}`} data-run=${run.run_id}>
        <td>${run.status === "paused" && run.approval_id
          ? html`<a class="waits" href=${approvalPlace(run.approval_id)}><${Status} status=${run.status} /></a>`
          : html`<${Status} status=${run.status} />`}</td>
        <td class="name">
          ${mayUnfold
            ? html`<button type="button" class="fold" aria-expanded=${isOpen} aria-label=${`Runs below ${name}`}
                onClick=${() => this.unfold(run.run_id)}>${isOpen ? "▾" : "▸"}</button>`
            : html`<span class="fold"></span>`}
          <a class="run-link" href=${runPlace(run.run_id)}>${name}</a>
          ${tagsOf(run).map((tag) => html` <a class="tag" href=${this.placeWith(tag)}>${short(tag, 60)}</a>`)}
          ${run.status === "failed" && html`<span class="reason">${short(run.error ?? run.code ?? "", 120)}</span>`}
        </td>
        <td>${run.agent}${run.step_id && html`<span class="dim"> ${run.step_id}</span>`}</td>
        <td class="wide">${run.user_id}</td>
        <td data-label="started"><${Time} at=${run.created_at} /></td>
        <td class="number">${duration(until - Date.parse(run.created_at))}</td>
        <td class="number wide">${tokensOf(run)}</td>
        <td class="number wide">${costOf(run)}</td>
      </tr>`,
      ...(isOpen ? below.flatMap((each) => this.rows(each, depth + 1)) : []),
    ];
  }

  placeWith(tag) {
    const filters = filtersOf(this.props.search);
    return placeOf({ ...filters, tags: [...new Set([...filters.tags, tag])] });
  }

  nothing(filters) {
    if (Object.values(filters).some((each) => each.length > 0)) {
      return html`<div class="empty">
        <p>No run fits these filters.</p>
        <p><a href="/console/runs">Show all runs</a></p>
      </div>`;
    }
    return html`<div class="empty">
      <p>There are no runs yet.</p>
      <p>${this.props.isPart ? "Start one above" : html`Start one on the <a href="/">start page</a>`}, or in a terminal: <code>penstock run "Hello" --agent AGENT</code></p>
    </div>`;
  }
}

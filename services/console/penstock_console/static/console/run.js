// @ts-check
// The screen of one run: its transcript as it comes, and all its events.

import { get, post } from "../api.js";
import { Again } from "./again.js";
import { EventList } from "./events.js";
import { Transcript } from "./fold.js";
import { Fork } from "./fork.js";
import { Graph } from "./graph.js";
import { Links } from "./links.js";
import { follow, oncePerFrame } from "./live.js";
import { focusOn, go, query, runPlace } from "./place.js";
import { Queue, Turn } from "./queue.js";
import { Raw } from "./raw.js";
import { LAST, RunEvents } from "./run_events.js";
import { ENDED, tagsOf, titleOf } from "./run_list.js";
import { State } from "./state.js";
import { StepPanel } from "./step.js";
import { Story } from "./story.js";
import { Timeline } from "./timeline.js";
import { UsageTable } from "./usage.js";
import { Component, Id, Notice, Said, Status, Time, duration, html, keepEnd, money, showEnd, statusWord, timeText } from "./view.js";
import { entitle, reconsider } from "./waiting.js";

const DELIVERIES_MS = 4000; // after the end, what automations send is given this time to arrive
const TABS = ["transcript", "timeline", "events", "raw", "state", "costs", "links"];
const LABELS = { transcript: "Transcript", timeline: "Timeline", events: "Events", raw: "Raw", state: "State", costs: "Costs", links: "Decisions and deliveries" };
/** Whether a view of the run, perhaps watched again, needs all events. */
const needsAll = (tab, at) => tab === "timeline" || tab === "costs" || (tab === "transcript" && at !== null);
const MOST_OF_STEPS = 10_000; // if the runs of a workflow's steps have more events, they are not read at once
const AGAIN_MS = 2000;
const FOLD_MS = 200; // so long, what waits for all events looks again
const FOLD_AT_ONCE = 5000; // so many events are folded before the page may do something else
const PAST = new Set(["transcript", "timeline", "state", "costs"]); // the views of a run watched again
const SPEEDS = [1, 10];
const MAX_GAP_MS = 3000; // a longer pause is shortened to this one while a run is watched again
const NUMBER = new Intl.NumberFormat();

const comparePlace = (one, other) => `/console/compare/${encodeURIComponent(one)}/${encodeURIComponent(other)}`;

function Usage({ usage }) {
  const costs = [...usage.micros].map(([currency, micros]) => money(currency, micros)).join(" + ");
  const unknown = usage.unknown ? `${usage.unknown} of ${usage.calls} ${usage.calls === 1 ? "call has" : "calls have"} no known price` : "";
  return html`<div>
      <dt>Tokens${usage.isEstimated ? ", estimated" : ""}</dt>
      <dd>${NUMBER.format(usage.input)} in, ${NUMBER.format(usage.output)} out</dd>
    </div>
    <div>
      <dt>Cost</dt>
      <dd>${costs} ${unknown && html`<span class="dim">${unknown}</span>`}</dd>
    </div>`;
}

/** Return what the record of a run says that its models used, in the form of a transcript's sums. */
function usageOf({ calls, input_tokens: read, total_tokens: total, output_tokens: output, cost_micros: micros, without_price: unknown, estimated }) {
  return { calls, input: read + total, output, micros: new Map(Object.entries(micros)), unknown, isEstimated: estimated > 0 };
}

const LISTED = 20;
const FURTHER = "further";

/** Leads to the comparison with another run: one of the latest of the same agent, or any by its id. */
class Others extends Component {
  constructor() {
    super();
    this.state = { runs: [], chosen: "" };
  }

  componentDidMount() {
    const { agent, parent_run_id: parent } = this.props.run;
    // Of a step, the runs of other steps of this workflow are beside it.
    const search = new URLSearchParams({ agent, limit: `${LISTED}`, ...(!parent && { parent_run_id: "" }) });
    get(`/v1/runs?${search}`).then(({ runs }) => this.setState({ runs: runs.filter((each) => each.run_id !== this.props.run.run_id) }), () => {});
  }

  render({ run }, { runs, chosen }) {
    const isFurther = chosen === FURTHER || !runs.length;
    const compare = (event) => {
      event.preventDefault();
      go(comparePlace(run.run_id, isFurther ? event.target.elements["other-run"].value.trim() : chosen));
    };
    return html`<h2>Compare with</h2>
      <form class="others" onSubmit=${compare}>
        ${runs.length > 0 && html`<label for="other">Run</label>
          <select id="other" required value=${chosen} onChange=${(event) => this.setState({ chosen: event.target.value }, () => event.target.value === FURTHER && focusOn("#other-run"))}>
            <option value="">choose one of ${run.agent}</option>
            ${runs.map((each) => html`<option value=${each.run_id}>${`${titleOf(each, 50)} (${statusWord(each.status)}, ${timeText(each.created_at)})`}</option>`)}
            <option value=${FURTHER}>another one, by its id</option>
          </select>`}
        ${isFurther && html`<label for="other-run">Its id</label> <input id="other-run" required placeholder="a run's id" />`}
        <button type="submit" class="quiet small">Compare</button>
      </form>`;
  }
}

/** The forms that begin another run from this one, each with its button. */
const FORMS = {
  again: {
    label: "Run again…",
    needsAll: true,
    show: (screen, onClose) => html`<${Again} run=${screen.state.run} transcript=${screen.transcript} onClose=${onClose} />`,
  },
  fork: {
    label: "Fork…",
    show: (screen, onClose) => html`<${Fork} path=${screen.path} at=${screen.state.forkAt ?? screen.ownSequence(screen.at())} isWorkflow=${screen.state.run.target === "workflows"} onClose=${onClose} />`,
  },
};

/** Whether an event is the first start of the step of this item. */
function isStart({ raw }, item) {
  if (!raw.includes("step_started")) return false;
  const { event, data } = JSON.parse(raw);
  return event.action === "step_started" && data.step_id === item.step;
}

export class Run extends Component {
  constructor() {
    super();
    this.state = { run: null, error: null, below: [], follows: true };
    this.draw = oncePerFrame((done) =>
      this.setState({}, () => {
        this.scroll();
        done();
      }),
    );
  }

  componentDidMount() {
    this.begin();
    this.clock = setInterval(() => !this.transcript.end && this.setState({}), 1000);
  }

  componentDidUpdate(before) {
    if (this.panel !== this.watched) {
      this.watcher?.disconnect();
      this.watched = this.panel;
      this.watcher = this.panel && keepEnd(this.panel, null, () => this.followsEnd() && !this.isElsewhere());
    }
    if (before.runId !== this.props.runId) this.begin();
    else if (this.lacksEvents()) this.readAll();
  }

  componentWillUnmount() {
    this.isGone = true;
    this.watcher?.disconnect();
    this.stream?.close();
    clearInterval(this.clock);
    clearTimeout(this.player);
    clearTimeout(this.timer);
  }

  /** Show the run of the address, perhaps with a form, and even with very many events of its steps. */
  begin({ withSteps = false, form = null } = {}) {
    clearTimeout(this.player);
    clearTimeout(this.timer);
    this.stream?.close();
    const { runId } = this.props;
    const path = `/v1/runs/${encodeURIComponent(runId)}`;
    this.transcript = new Transcript(runId);
    this.events = new RunEvents(path);
    this.record = null;
    this.path = path;
    this.withSteps = withSteps;
    this.stepsApart = 0; // so many events of the steps' runs are not among those of the page
    this.setState({ run: null, error: null, below: [], definition: null, form, step: null, forkAt: null, speed: 0, isCancelling: false });
    this.open();
  }

  /**
   * Follow the run: from its last events on, or all of a workflow's with those of its steps, which
   * are numbered by all earlier ones. If these are very many, the workflow's own are followed.
   */
  async open() {
    const { path } = this;
    const mayFollow = await this.read();
    if (this.path !== path || this.isGone || !mayFollow) return;
    if (!this.record) {
      this.timer = setTimeout(() => this.open(), AGAIN_MS);
      return;
    }
    const isWorkflow = this.record.target === "workflows";
    const count = isWorkflow && !this.withSteps ? (await this.steps).reduce((sum, { sequence = 0 }) => sum + sequence, 0) : 0;
    if (this.path !== path || this.isGone) return;
    this.stepsApart = count > MOST_OF_STEPS ? count : 0;
    const which = isWorkflow && !this.stepsApart ? "include=children" : `from=-${LAST}`;
    this.stream = follow(`${path}/events?names=off&${which}`, {
      take: (message) => this.path === path && this.take(message),
      state: (word) => {
        this.props.onLive(word);
        if (word === "live" && this.state.error) this.read();
      },
      // Refused: the reason is in the answer to a read of the run.
      ended: () => this.read(),
    });
  }

  /** Read the run's record. Return whether the stream may be tried again. */
  async read() {
    const { path } = this;
    try {
      const run = await get(path);
      if (this.path !== path || this.isGone) return false;
      this.record = run;
      entitle(titleOf(run, 40));
      this.setState({ run, error: null });
      const search = new URLSearchParams({ parent_run_id: run.run_id, limit: "200" });
      this.steps = get(`/v1/runs?${search}`).then(({ runs }) => runs.reverse(), () => []);
      this.steps.then((below) => this.path === path && this.setState({ below }));
      return !this.transcript.end;
    } catch (error) {
      if (this.path === path) this.setState({ error: error.message });
      return error.mayPass;
    }
  }

  take(message) {
    const event = JSON.parse(message.data);
    if (this.events.push(message.data, event)) this.transcript.isPart = true;
    this.transcript.take(event);
    if (event.event.category === "approval") reconsider();
    if (event.event.category === "workflow" && event.event.action === "started") this.readSteps(event);
    if (event.event.category === "lifecycle" && event.run_id === this.props.runId) {
      if (this.transcript.end) {
        this.stream.close();
        this.props.onLive(null);
        setTimeout(() => !this.isGone && this.read(), DELIVERIES_MS);
      }
      this.read();
    }
    this.draw();
  }

  /** Whether what is shown needs events that are not here yet. */
  lacksEvents() {
    const { form } = this.state;
    return this.transcript.isPart && (needsAll(this.tab(), this.at()) || Boolean(FORMS[form]?.needsAll));
  }

  /** Read the events before those that are here: one page of them. Throws Refused. */
  async readEarlier() {
    const { events } = this;
    await events.readEarlier();
    await this.fold(events);
  }

  /** Read all events; after an error that may pass, again. */
  async readAll() {
    const { events } = this;
    if (events.areRead || !this.transcript.isPart) return;
    events.areRead = true;
    const isWanted = () => this.events === events && !this.isGone;
    try {
      while (!events.isWhole && isWanted()) {
        await events.readEarlier();
        this.setState({ error: null });
      }
      if (isWanted()) await this.fold(events);
    } catch (error) {
      if (!isWanted()) return;
      this.setState({ error: error.message });
      if (!error.mayPass) return;
      this.timer = setTimeout(() => {
        events.areRead = false;
        this.readAll();
      }, AGAIN_MS);
    }
  }

  /** Make the transcript anew of all events that are here. New events may come meanwhile. */
  async fold(events) {
    const transcript = new Transcript(this.props.runId, !events.isWhole);
    if (events.isWhole && events.notice) transcript.take(events.notice);
    for (let at = events.first; at < events.count; at += 1) {
      transcript.take(JSON.parse(events.all[at].raw));
      if (at % FOLD_AT_ONCE === 0) await new Promise((goOn) => setTimeout(goOn));
    }
    if (this.events !== events || this.isGone) return;
    this.transcript = transcript;
    await new Promise((drawn) => this.setState({}, () => drawn(null)));
  }

  /** Read the definition of the workflow whose run this is, to show its steps. */
  async readSteps({ run_id: runId, data }) {
    if (runId !== this.props.runId || !data.version) return;
    const path = `/v1/workflows/${encodeURIComponent(data.workflow)}/versions/${encodeURIComponent(data.version)}`;
    const found = await get(path).catch(() => null); // the transcript has the steps, too
    if (found && this.props.runId === runId) this.setState({ definition: found.definition });
  }

  followsEnd() {
    return this.state.follows && !this.transcript.end && this.tab() === "transcript";
  }

  /** Whether the reader uses something outside of the panel, which must stay in view. */
  isElsewhere() {
    const { activeElement: used } = document;
    return Boolean(used?.matches("a, button, input, select, textarea, summary")) && !this.panel.contains(used);
  }

  /** Keep the end of the transcript in view. */
  scroll() {
    if (this.followsEnd() && this.panel) showEnd(this.panel);
  }

  /** How many events the transcript has, where it is watched again; null for all of them. */
  at() {
    const { at } = query(this.props.search, ["at"]);
    return /^[0-9]{1,9}$/u.test(at) ? Math.min(Number(at), this.events.count) : null;
  }

  /** Return the transcript as it was after so many events. */
  transcriptAt(count) {
    if (count === null || this.transcript.isPart) return this.transcript;
    if (this.past?.runId !== this.props.runId || this.past.count > count) {
      this.past = { runId: this.props.runId, count: 0, transcript: new Transcript(this.props.runId) };
    }
    for (; this.past.count < count; this.past.count += 1) {
      this.past.transcript.take(JSON.parse(this.events.all[this.past.count].raw));
    }
    return this.past.transcript;
  }

  /** The sequence of the last event of the run itself among the first `count`; null for the last. */
  ownSequence(count) {
    const last = (count ?? this.events.count) - 1;
    if (this.state.run?.target !== "workflows" || this.stepsApart) return JSON.parse(this.events.all[last]?.raw ?? "{}").sequence ?? last + 1;
    // The stream of a workflow counts the events of its steps' runs, too. Only these have a subrun.
    let own = 0;
    for (let index = 0; index <= last; index += 1) own += this.events.all[index].isBelow ? 0 : 1;
    return own;
  }

  watch(count) {
    go(this.place({ tab: this.tab(), at: count }), { replace: true });
  }

  /**
   * Show the events after the first `at` one after another, so many times faster than they came.
   * With the speed 0, stop.
   */
  play(speed, at = 0) {
    clearTimeout(this.player);
    const { all, count } = this.events;
    const isOver = at >= count;
    this.setState({ speed: isOver ? 0 : speed });
    if (isOver || !speed) return;
    if (this.transcript.isPart) {
      this.watch(at); // which reads all events
      this.player = setTimeout(() => this.play(speed, at), FOLD_MS);
      return;
    }
    this.watch(at + 1);
    const time = (index) => Date.parse(JSON.parse(all[index].raw).timestamp);
    const wait_ms = at + 1 < count ? Math.min(time(at + 1) - time(at), MAX_GAP_MS) : 0;
    this.player = setTimeout(() => this.play(speed, at + 1), wait_ms / speed);
  }

  tab() {
    const { tab } = query(this.props.search, ["tab"]);
    return TABS.includes(tab) ? tab : TABS[0];
  }

  /** The address of this run, with these values of the query. */
  place(values) {
    const search = new URLSearchParams(Object.entries(values).filter(([, each]) => each !== null && each !== TABS[0]));
    return `${runPlace(this.props.runId)}${search.size ? `?${search}` : ""}`;
  }

  /** Open a form, or close it. What a run has called is only known with the events of its steps. */
  choose(form) {
    if (form && FORMS[form].needsAll && this.stepsApart) this.begin({ withSteps: true, form });
    else this.setState({ form, forkAt: null });
  }

  /** Open the form of a fork that does this step, or this item, again. */
  forkBefore(item) {
    const began = this.events.all.findIndex((each) => !each.isBelow && isStart(each, item));
    this.setState({ form: "fork", forkAt: Math.max(1, this.ownSequence(began)) });
  }

  /** Show the item of a bar in the transcript. */
  reveal({ key }) {
    go(this.place({ tab: "transcript", at: this.at() }));
    requestAnimationFrame(() => this.story?.reveal(key));
  }

  async cancel() {
    const { path } = this;
    this.setState({ isCancelling: true });
    try {
      await post(`${path}/cancel`, {});
    } catch (error) {
      if (this.path === path) this.setState({ error: error.message });
    }
    if (this.path !== path) return;
    // The button is gone when the run has ended.
    this.setState({ isCancelling: false }, () => document.activeElement === document.body && focusOn("h1"));
    this.read();
  }

  render({ runId, search }, { run, error, below, follows, form, step, isCancelling, definition }) {
    if (!run) {
      // The elements are those of the whole screen, so that the heading keeps the focus.
      return html`<main class="run">
        <p class="crumbs"><a href="/console/runs">Runs</a></p>
        <div class="bar"><h1 tabindex="-1">Run</h1></div>
        ${error ? html`<${Notice} text=${error} />` : html`<p class="dim">Loading…</p>`}
      </main>`;
    }
    const { events } = this;
    const end = this.transcript.end;
    const at = this.at();
    const transcript = this.transcriptAt(at);
    const status = end ? end.event.action : run.status;
    const tab = this.tab();
    const until = end ? Date.parse(end.timestamp) : ENDED.has(run.status) ? Date.parse(run.updated_at) : Date.now();
    const lacks = transcript.isPart && needsAll(tab, at);
    const labels = { ...LABELS, events: `Events (${NUMBER.format(events.count)})` };
    const now = at === null ? until : Date.parse(JSON.parse(events.all[Math.max(0, at - 1)]?.raw ?? "{}").timestamp ?? run.created_at);
    const steps = definition && transcript.steps;
    const waitsForTurn = run.target === "workflows" && status === "running" && this.transcript.items.length > 0 && !this.transcript.workflow;
    const isPast = at !== null && PAST.has(tab) && !lacks;
    const told = this.stepsApart ? (run.usage_with_children ?? run.usage) : run.usage;
    const usage = !transcript.isPart && !this.stepsApart ? transcript.usage : isPast ? null : told && usageOf(told);
    return html`<main class="run">
      <p class="crumbs">
        <a href="/console/runs">Runs</a>
        ${run.parent_run_id && html` / <a href=${runPlace(run.parent_run_id)}>the run above</a>`}
        ${run.forked_from && html` / ${run.forked_from.sequence ? `goes on after event ${run.forked_from.sequence} of` : "repeats"} <a class="forked" href=${runPlace(run.forked_from.run_id)}>an earlier run</a>,${" "}
          <a href=${comparePlace(run.forked_from.run_id, runId)}>compare both</a>`}
      </p>
      <div class="bar">
        <h1 tabindex="-1">${titleOf(run, 160)}</h1>
        <${Status} status=${status} />
        ${!ENDED.has(status) && html`<button type="button" class="reject cancel" disabled=${isCancelling} onClick=${() => this.cancel()}>Cancel the run</button>`}
        ${end && !run.step_id && Object.entries(FORMS).map(([name, { label }]) => html`<button type="button" class=${`quiet run-${name}`} aria-expanded=${form === name}
          disabled=${name === "fork" && Boolean(run.no_fork)} aria-describedby=${name === "fork" && run.no_fork ? "no-fork" : undefined}
          onClick=${() => this.choose(form === name ? null : name)}>${label}</button>`)}
      </div>
      ${end && !run.step_id && ENDED.has(run.status) && run.no_fork && html`<p class="dim" id="no-fork">No fork: <${Said} text=${run.no_fork} />.</p>`}
      ${end && form && (FORMS[form].needsAll && transcript.isPart ? this.progress() : FORMS[form].show(this, () => this.setState({ form: null }, () => focusOn(`.run-${form}`))))}
      <${Notice} text=${error} />
      <div class="columns">
        <div class="story">
          ${definition && html`<${Graph} steps=${definition.steps} states=${steps} chosen=${step} onChoose=${(id) => this.setState({ step: id === step ? null : id }, () => focusOn(".step-panel h2"))} />`}
          ${definition && step && html`<${StepPanel} id=${step} step=${definition.steps[step]} parts=${steps.get(step)?.parts ?? []}
            onFork=${end && !run.no_fork && !run.step_id ? (item) => this.forkBefore(item) : null} onClose=${() => this.setState({ step: null }, () => focusOn(`[data-step="${CSS.escape(step)}"] button`))} />`}
          <div class="tabs">
            <div role="tablist" aria-label="Views of the run" onKeyDown=${(event) => this.press(event)}>
            ${TABS.map(
              (name) => html`<a role="tab" id=${`tab-${name}`} href=${this.place({ tab: name, at: name === "events" ? null : at })}
                aria-selected=${tab === name} aria-controls="panel" tabindex=${tab === name ? 0 : -1}>${labels[name]}</a>`,
            )}
            </div>
            ${!end && tab === "transcript" && html`<label class="follow"><input type="checkbox" checked=${follows} onChange=${(event) => this.setState({ follows: event.target.checked })} /> Follow the end</label>`}
          </div>
          ${this.stepsApart > 0 && html`<p class="steps-apart dim">The runs of its steps have ${NUMBER.format(this.stepsApart)} events more, which are not here: each step leads to its run.${" "}
            <button type="button" class="quiet small" onClick=${() => this.begin({ withSteps: true })}>Show them here</button></p>`}
          <div id="panel" role="tabpanel" ref=${(panel) => (this.panel = panel)} aria-labelledby=${`tab-${tab}`}>
            ${PAST.has(tab) && end && this.slider(at)}
            ${tab === "events" && html`<${EventList} events=${events} runId=${runId} onAll=${() => this.readAll()} />`}
            ${tab === "state" && html`<${State} path=${this.path} at=${this.ownSequence(at)} />`}
            ${lacks && this.progress()}
            ${tab === "timeline" && !lacks && html`<${Timeline} items=${transcript.items} now=${now} onChoose=${(item) => this.reveal(item)} />`}
            ${tab === "raw" && (run.target === "workflows" ? html`<p class="dim">A workflow has no agent server: the runs of its steps have the bytes.</p>` : html`<${Raw} path=${`${this.path}/events?dialect=raw`} />`)}
            ${tab === "costs" && !lacks && html`<${UsageTable} transcript=${transcript} />`}
            ${tab === "links" && html`<${Links} key=${status} run=${run} path=${this.path} />`}
            ${tab === "transcript" && !lacks && html`<${Story} ref=${(story) => (this.story = story)} transcript=${transcript} isPast=${at !== null}
                unread=${events.isWhole ? 0 : events.first - events.gone} onEarlier=${() => this.readEarlier()} onAll=${() => this.readAll()} />
              ${!transcript.items.length && html`<p class="dim">Nothing has happened yet.</p>`}
              ${!end && status === "running" && html`<p class="working" role="status">${waitsForTurn ? "waits for its turn…" : "working…"}</p>`}`}
          </div>
        </div>
        <aside aria-label="About the run">
          <dl class="facts">
            <div><dt>Run</dt><dd><${Id} text=${run.run_id} label="the run's id" /></dd></div>
            <div><dt>Agent</dt><dd>${run.agent}</dd></div>
            <div><dt>User</dt><dd>${run.user_id}</dd></div>
            <div><dt>Session</dt><dd><a href=${`/console/runs?${new URLSearchParams({ session_id: run.session_id })}`}>${run.session_id}</a></dd></div>
            ${tagsOf(run).length > 0 && html`<div><dt>Tags</dt><dd>${tagsOf(run).map((tag) => html`<a class="tag" href=${`/console/runs?${new URLSearchParams({ tag })}`}>${tag}</a> `)}</dd></div>`}
            <div><dt>Started</dt><dd><${Time} at=${run.created_at} day=${true} /></dd></div>
            ${isPast && html`<div class="as-of"><dt>Below: as it was after event ${String(at)}</dt><dd><${Time} at=${new Date(now).toISOString()} day=${true} /></dd></div>`}
            <div><dt>Duration</dt><dd>${duration((isPast ? now : until) - Date.parse(run.created_at))}</dd></div>
            ${!isPast && run.target !== "workflows" && html`<div><dt>Requests to the agent's server</dt><dd>${String(run.legs ?? 0)}</dd></div>`}
            ${usage?.calls > 0 && html`<${Usage} usage=${usage} />`}
          </dl>
          ${!ENDED.has(status) && run.target !== "workflows" && html`<${Queue} key=${run.session_id} session=${run.session_id} agent=${run.agent} user=${run.user_id} runId=${runId} />`}
          ${waitsForTurn && html`<${Turn} key=${runId} workflow=${this.transcript.items[0].workflow ?? run.agent} runId=${runId} />`}
          ${below.length > 0 && !isPast &&
          html`<h2>Runs below</h2>
            <ul class="below">
              ${below.map((each) => html`<li key=${each.run_id}>
                <a href=${runPlace(each.run_id)}>${each.step_id ?? each.agent}</a>
                <${Status} status=${each.status} />
              </li>`)}
            </ul>`}
          <${Others} key=${runId} run=${run} />
        </aside>
      </div>
    </main>`;
  }

  /** How far the reading of all events is. */
  progress() {
    const { count, first } = this.events;
    return html`<p class="dim" role="status">All ${NUMBER.format(count)} events are read for this: ${NUMBER.format(count - first)} are here.</p>`;
  }

  slider(at) {
    const { speed = 0 } = this.state;
    const { count } = this.events;
    return html`<div class="watch" role="group" aria-label="Watch the run again">
      ${SPEEDS.map((each) => html`<button type="button" class="quiet small" aria-pressed=${speed === each}
        onClick=${() => this.play(speed === each ? 0 : each, at === count ? 0 : (at ?? 0))}>${speed === each ? "Stop" : `Play ×${each}`}</button>`)}
      <input type="range" aria-label="Events shown" min="0" max=${count} value=${at ?? count}
        onInput=${(event) => (this.play(0), this.watch(Number(event.target.value)))} />
      <span class="dim" role="status">${at === null ? "the whole run" : `after event ${at} of ${count}`}</span>
      ${at !== null && html`<button type="button" class="quiet small" onClick=${() => (this.play(0), this.watch(null))}>Show all</button>`}
    </div>`;
  }

  press(event) {
    const at = TABS.indexOf(this.tab());
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    go(this.place({ tab: TABS.at(next % TABS.length) }), { replace: true });
    requestAnimationFrame(() => focusOn("[role=tab][aria-selected=true]"));
  }
}

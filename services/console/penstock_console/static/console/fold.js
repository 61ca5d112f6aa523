// @ts-check
// Makes a run's transcript from its events. No DOM.

import { call, short } from "../text.js";

/** The transcript of a run and of the runs below it. */
export class Transcript {
  constructor(runId, isPart = false) {
    this.runId = runId;
    this.isPart = isPart; // whether it begins after the first event of the run
    this.items = []; // in the order in which they began; `version` counts the changes of an item
    this.end = null; // the event that ended the run
    this.workflow = null; // what the run's own `workflow.started` says, if the run is a workflow's
    // The sum of all calls of models; `micros` has millionths of each currency.
    this.usage = noUsage("", "");
    this.costs = new Map(); // the same for each model and each tool that costs something
    this._byKey = new Map();
    this._tasks = new Map(); // what a worker was given to do, by the id of its run
  }

  take(event) {
    const { category, action } = event.event;
    const read = READ[`${category}.${action}`];
    if (read) read(this, event, event.data);
  }

  /**
   * The steps of the run itself, by their ids in the definition: the state, the attempt and the end
   * of the last attempt, when the first one began, the `items` of a loop, and all `parts` of the
   * step.
   */
  get steps() {
    const found = new Map();
    for (const item of this.items) {
      if (item.kind !== "step" || item.isBelow) continue;
      // Events have `step_` before the id of the definition.
      const id = (item.loop ?? item.step).replace(/^step_/u, "");
      if (!found.has(id)) found.set(id, { items: new Map(), parts: [] });
      const step = found.get(id);
      step.parts.push(item);
      if (item.loop) step.items.set(item.step, item);
      else Object.assign(step, { state: item.state, attempt: item.attempt, until: item.until });
      step.at ??= item.at; // of the first attempt
    }
    return found;
  }

  /** Return the item of this kind and id; make it if it is new. */
  item(event, kind, id, fresh = {}) {
    const key = `${kind} ${event.run_id} ${id}`;
    let found = this._byKey.get(key);
    if (!found) {
      found = {
        key,
        kind,
        at: event.timestamp,
        sequence: event.sequence,
        runId: event.run_id,
        isBelow: event.run_id !== this.runId || Boolean(event.subrun),
        who: event.source?.agent_name ?? null,
        role: event.source?.agent_type ?? null,
        below: event.subrun?.id ?? null, // the run below this one of which it is
        version: 0,
        ...fresh,
      };
      this._byKey.set(key, found);
      this.items.push(found);
    }
    found.version += 1;
    return found;
  }

  /** With what a text begins of which no beginning was taken. */
  get cut() {
    return this.isPart && this.items.length === 0 ? "… " : "";
  }

  known(event, kind, id) {
    const found = this._byKey.get(`${kind} ${event.run_id} ${id}`);
    if (found) found.version += 1;
    return found;
  }

  note(event, text, tone = "dim") {
    return this.item(event, "note", event.sequence, { text, tone });
  }

  remove(item) {
    this._byKey.delete(item.key);
    this.items.splice(this.items.indexOf(item), 1);
  }
}

function noUsage(kind, name) {
  return { kind, name, calls: 0, input: 0, output: 0, micros: new Map(), unknown: 0, isEstimated: false };
}

/** Add a call to the sums of the run, and to those of the model or the tool. */
function spend(transcript, kind, name, data) {
  const key = `${kind} ${name}`;
  if (!transcript.costs.has(key)) transcript.costs.set(key, noUsage(kind, name));
  for (const sum of [transcript.usage, transcript.costs.get(key)]) {
    sum.calls += sum === transcript.usage && kind === "tool" ? 0 : 1;
    sum.input += data.input_tokens ?? data.total_tokens ?? 0;
    sum.output += data.output_tokens ?? 0;
    sum.isEstimated ||= Boolean(data.estimated);
    if (data.cost) sum.micros.set(data.cost.currency, (sum.micros.get(data.cost.currency) ?? 0) + data.cost.micros);
    else sum.unknown += 1;
  }
}

function settled(transcript, event, outcome) {
  const item = transcript.known(event, "approval", event.data.approval_id);
  if (item) Object.assign(item, { outcome, until: event.timestamp });
}

/** The decision on an approval, which may have changed the arguments of calls. */
function decided(transcript, event, { approval_id: id, outcome, by, note, items }) {
  settled(transcript, event, `${outcome} by ${by}`);
  const item = transcript.known(event, "approval", id);
  if (!item) return;
  const changes = new Map(items.filter(({ args }) => args).map(({ item_id: of, args }) => [of, args]));
  const asked = item.approval.items.map((each) => {
    const args = changes.get(each.item_id);
    if (!args) return each;
    const call = transcript.known(event, "tool", each.tool_call_id);
    if (call) Object.assign(call, { args, areEdited: true });
    return { ...each, args, requested_args: each.args };
  });
  item.approval = { ...item.approval, items: asked, decision: { note } };
}

function delivered(transcript, event, data, state) {
  const item = transcript.item(event, "delivery", data.delivery_id, { name: data.automation });
  Object.assign(item, { state, until: event.timestamp, result: data.error ?? data.result });
}

function ended(transcript, event, data) {
  if (event.run_id !== transcript.runId) return;
  transcript.end = event;
  for (const item of transcript.items) {
    // Steps that are stopped with their run have no end of their own.
    if (item.kind !== "step" || item.until || item.isBelow) continue;
    Object.assign(item, { state: "cancelled", until: event.timestamp, version: item.version + 1 });
  }
  transcript.item(event, "end", event.event.action, { action: event.event.action, data });
}

const READ = {
  "lifecycle.started": (all, event, data) => {
    const text = data.message ?? "";
    if (event.run_id === all.runId) all.item(event, "asked", "", { text, who: data.user_id, workflow: data.workflow });
    else all.note(event, `⇒ ${data.agent}: ${short(text)}`, "tool");
  },
  "lifecycle.resumed": (all, event) => event.run_id === all.runId && all.note(event, "the run goes on"),
  "lifecycle.retrying": (all, event, data) =>
    all.note(event, `${data.step ?? "it"} is tried again: ${data.reason}`),
  "lifecycle.completed": ended,
  "lifecycle.failed": ended,
  "lifecycle.cancelled": ended,
  "llm.message_started": (all, event, data) =>
    all.item(event, "message", data.message_id, { text: "", who: data.name ?? event.source?.agent_name }),
  "llm.stream": (all, event, data) => {
    all.item(event, "message", data.message_id, { text: all.cut }).text += data.content;
  },
  "llm.message_completed": (all, event, data) => {
    const item = all.item(event, "message", data.message_id, { text: "" });
    Object.assign(item, { isDone: true, until: event.timestamp });
    if (data.content && item.text !== data.content) item.text = data.content;
    if (data.error) item.error = data.error;
  },
  "llm.reasoning": (all, event, data) => {
    const item = all.item(event, "reasoning", data.reasoning_id, { text: all.cut });
    item.text += data.thought;
    item.until = event.timestamp;
  },
  "llm.usage": (all, event, data) => spend(all, "model", data.model ?? "a model", data),
  "llm.tool_args": (all, event, data) => {
    const item = all.item(event, "tool", data.tool_call_id, { tool: data.tool, argsText: all.cut });
    item.argsText += data.delta ?? "";
  },
  "llm.tool_call": (all, event, data) => {
    const { tool, args, pending } = data;
    Object.assign(all.item(event, "tool", data.tool_call_id), { tool, args, state: pending ? "waits" : "called" });
  },
  "llm.tool_progress": (all, event, data) => {
    const item = all.known(event, "tool", data.tool_call_id);
    if (!item) return;
    item.state = data.status ?? item.state;
    if (data.args) Object.assign(item, { args: data.args, areEdited: true });
  },
  "llm.tool_result": (all, event, data) => {
    const item = all.item(event, "tool", data.tool_call_id, { tool: data.tool });
    const took = data.duration_s ?? (Date.parse(event.timestamp) - Date.parse(item.at)) / 1000;
    Object.assign(item, { state: data.outcome, result: data.result, error: data.error, took, until: event.timestamp });
    if (data.cost) spend(all, "tool", data.tool ?? item.tool ?? "a tool", { cost: data.cost });
  },
  "approval.requested": (all, event, data) =>
    all.item(event, "approval", data.approval_id, { approval: data, outcome: null }),
  "approval.decided": decided,
  "approval.expired": (all, event) => settled(all, event, "nobody decided in time"),
  "approval.withdrawn": (all, event) => settled(all, event, "the decision is not needed any more"),
  "approval.escalated": (all, event) => all.note(event, "further people may decide now"),
  "approval.remarked": (all, event, { kind, by, to, text }) => all.note(event, `${kind} of ${by}${to ? ` to ${to}` : ""}: ${text ?? ""}`),
  "approval.reminded": (all, event) => all.note(event, "the deadline of the decision is near"),
  "dispatch.team": (all, event, data) => all.note(event, `⇒ ${data.team_name}: ${short(data.task)}`, "tool"),
  "dispatch.worker": (all, event, data) => {
    const note = all.note(event, `⇒ ${data.worker_name}: ${short(data.task)}`, "tool");
    all._tasks.set(data.subrun_id, { note, task: data.task });
  },
  "dispatch.transfer": (all, event, data) => all.note(event, `⇒ ${data.from} hands over to ${data.to}`, "tool"),
  "workflow.started": (all, event, data) => {
    if (event.run_id !== all.runId) return;
    all.workflow ??= data;
    const asked = all.known(event, "asked", "");
    if (asked && !asked.text) asked.input = data.input;
  },
  "workflow.step_started": (all, event, data) => {
    const id = `${data.step_id} ${data.iteration ?? ""} ${data.attempt ?? ""}`;
    const name = data.description || data.step_id;
    const earlier = all._byKey.get(`step ${event.run_id} ${data.step_id}`);
    // The attempt before has no end of its own.
    if (earlier && !earlier.until) Object.assign(earlier, { state: "failed", until: event.timestamp, version: earlier.version + 1 });
    const step = all.item(event, "step", id, {
      name,
      step: data.step_id,
      attempt: data.attempt,
      loop: data.parent_step_id,
      state: data.kind === "approve" ? "paused" : "running",
      child: data.child_run_id,
    });
    const given = all._tasks.get(data.child_run_id);
    if (given) {
      step.task = given.task;
      all.remove(given.note);
    }
    all._byKey.set(`step ${event.run_id} ${data.step_id}`, all._byKey.get(`step ${event.run_id} ${id}`));
  },
  "workflow.step_completed": (all, event, data) => {
    const item = all.known(event, "step", data.step_id);
    if (item) Object.assign(item, { state: "completed", output: data.output, until: event.timestamp, takenFrom: data.taken_from });
  },
  "workflow.step_failed": (all, event, data) => {
    const item = all.known(event, "step", data.step_id);
    if (item) Object.assign(item, { state: "failed", error: data.error.message, until: event.timestamp });
  },
  "automation.triggered": (all, event, data) =>
    all.item(event, "delivery", data.delivery_id, { name: data.automation, state: "waiting" }),
  "automation.completed": (all, event, data) => delivered(all, event, data, "delivered"),
  "automation.failed": (all, event, data) => delivered(all, event, data, "failed"),
  "retrieval.started": (all, event, data) => all.note(event, `⌕ ${short(data.query)}`, "tool"),
  "artifact.updated": (all, event, data) => all.note(event, `artifact ${data.name}`),
  "system.warning": (all, event, data) => all.note(event, `! ${data.message ?? data.code}`, "bad"),
  "system.erased": (all, event, data) => all.note(event, `The content of this run was erased by ${data.by}${data.reason ? `: ${data.reason}` : "."}`),
  "system.error": (all, event, data) => all.note(event, `! ${data.message ?? data.code}`, "bad"),
};

/** Return an event as one short line. */
export function lineOf(event) {
  const { data } = event;
  if (data.input_tokens !== undefined) {
    return `${data.model ?? "a model"}: ${data.input_tokens} tokens in, ${data.output_tokens ?? 0} out`;
  }
  if (data.tool && data.args) return short(call(data.tool, data.args), 300);
  if (data.tool) return `${data.tool}: ${short(data.error ?? data.result ?? data.delta ?? data.status, 120)}`;
  if (event.event.category === "approval" && data.items) {
    const calls = data.items.map((item) => (item.tool ? call(item.tool, item.args) : item.decision ?? item.kind));
    return short(`${data.outcome ? `${data.outcome} by ${data.by}: ` : ""}${calls.join(", ")}`, 160);
  }
  const text =
    data.content ?? data.thought ?? data.message ?? data.error ?? data.summary ?? data.reason ?? data.description ?? data.task ?? data.name;
  return short(typeof text === "string" ? text : data, 160);
}

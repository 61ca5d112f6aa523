// @ts-check
// The runs of a list: pages of records, and lifecycle events applied to them. No DOM.

import { short } from "../text.js";

export const ENDED = new Set(["completed", "failed", "cancelled"]);

const STATUS = {
  started: "running",
  paused: "paused",
  resumed: "running",
  completed: "completed",
  failed: "failed",
  cancelled: "cancelled",
};

const SHOWN = 200; // the characters of a message that lists know, as the edge does

/** Return a text as the edge searches it: without case, and with one space for all spaces. */
function folded(text) {
  return text.toLowerCase().split(/\s+/u).filter(Boolean).join(" ");
}

/** Return the tags of a run, each as `key=value`. */
export function tagsOf(record) {
  return Object.entries(record.tags ?? {}).map(([key, value]) => `${key}=${value}`);
}

/** Return by what a run is known: its message; a workflow's run also by the workflow's name. */
export function titleOf({ run_id: id, agent, message, target }, most) {
  const text = short(message ?? "", most);
  if (target !== "workflows") return text || id;
  return text ? `${agent}: ${text}` : agent;
}

export class RunList {
  /**
   * `filters` may have `agent`, `user_id`, `tenant`, `session_id`, `since`, `until`, `text` (of the
   * message), `status`, a list of which one must fit, and `tags`, each as `key=value`.
   */
  constructor(filters) {
    this.filters = filters;
    this.records = new Map(); // all runs that are known, by id
    this.children = new Map(); // the ids of the runs below a run, by its id
  }

  /** Take records of a page. A record that is older than what an event has said changes nothing. */
  add(records) {
    for (const record of records) {
      const known = this.records.get(record.run_id);
      if (known && known.sequence > record.sequence) {
        known.message ||= record.message; // which the events of a workflow's run do not tell
        continue;
      }
      this.records.set(record.run_id, record);
      this._link(record);
    }
  }

  /**
   * Apply an event. Return `shown` if it changed a run, `unknown` if it is about a run that is not
   * here but may belong here, and null otherwise.
   */
  apply(event) {
    const status = STATUS[event.event.action];
    if (event.event.category !== "lifecycle" || status === undefined) return null;
    const known = this.records.get(event.run_id);
    if (known && known.sequence >= event.sequence) return null;
    if (!known && event.event.action !== "started") {
      return this.filters.status?.includes(status) ? "unknown" : null;
    }
    const { data, timestamp } = event;
    const record = known ?? {
      run_id: event.run_id,
      agent: data.agent,
      user_id: data.user_id,
      session_id: event.session_id,
      parent_run_id: event.parent_run_id,
      step_id: event.step_id,
      message: data.message ?? "",
      tags: data.tags,
      tenant: data.tenant,
      target: data.workflow ? "workflows" : undefined,
      created_at: timestamp,
    };
    this.records.set(event.run_id, {
      ...record,
      status,
      sequence: event.sequence,
      updated_at: timestamp,
      approval_id: status === "paused" ? data.approval_id : undefined,
      ...(status === "failed" && { code: data.code, error: data.error }),
      ...(data.usage && { usage: { ...record.usage, ...data.usage } }),
    });
    this._link(this.records.get(event.run_id));
    return "shown";
  }

  _link(record) {
    if (!record.parent_run_id) return;
    const below = this.children.get(record.parent_run_id) ?? new Set();
    this.children.set(record.parent_run_id, below.add(record.run_id));
  }

  /** The runs of the list that fit the filters, the newest first; without runs below others. */
  get rows() {
    return this._sorted(
      [...this.records.values()].filter((each) => !each.parent_run_id && this._fits(each)),
    );
  }

  /** The runs below a run, in the order of their starts. */
  below(runId) {
    const found = [...(this.children.get(runId) ?? [])].map((id) => this.records.get(id));
    return this._sorted(found).reverse();
  }

  _fits(record) {
    const { since, until, text, status = [], tags = [], ...equal } = this.filters;
    const began = Date.parse(record.created_at);
    if (began < Date.parse(since) || began >= Date.parse(until)) return false;
    const own = tagsOf(record);
    if (text && !folded((record.message ?? "").slice(0, SHOWN)).includes(folded(text))) return false;
    if (!tags.every((each) => own.includes(each))) return false;
    if (status.length && !status.includes(record.status)) return false;
    return Object.entries(equal).every(([name, value]) => !value || record[name] === value);
  }

  // Ids of runs begin with the time of their start.
  _sorted(records) {
    return records.sort((one, other) => (one.run_id < other.run_id ? 1 : -1));
  }
}

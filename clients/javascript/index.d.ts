import type { Envelope, EventOf, EventType } from "./events.js";
import type { ApprovalRecord, RunRecord } from "./records.js";

export type * from "./events.js";
export type { ApprovalRecord, RunRecord } from "./records.js";

/** What the server says about the stream, and not about the run. It has no cursor. */
export interface Notice {
  run_id: string;
  timestamp: string;
  sequence?: undefined;
  event: { category: "system"; action: "warning" };
  /** `history_truncated`: earlier events are no longer kept. Further codes: docs/clients.md. */
  data: { code: string; message: string };
}

export function typeOf(event: Envelope | Notice): string;
/** Whether an event is of this type: then TypeScript knows its `data`. */
export function isType<T extends EventType>(event: Envelope | Notice, type: T): event is EventOf<T>;
export function isNotice(event: Envelope | Notice): event is Notice;

export interface ClientOptions {
  /** A bearer token, or a function that returns the present one: it is called for each connection. */
  token?: string | null | (() => string | null | Promise<string | null>);
  /** Whether the browser's cookie authenticates, after a sign-in; requests then have a CSRF token. */
  cookie?: boolean;
  /** Gets a line for each broken connection, which the client makes again by itself. */
  notice?: (text: string) => void;
  fetch?: typeof globalThis.fetch;
}

export interface FollowOptions {
  /** The time in which the run must end; else DeadlineReached is thrown, and the run goes on. */
  deadlineMs?: number;
  /** Ends the iteration with the signal's reason. The run goes on. */
  signal?: AbortSignal;
}

export interface StartOptions {
  session_id?: string;
  user_id?: string;
  input?: Record<string, unknown>;
  /** With the same key, a second start gets the first one's run. The client makes one by itself. */
  idempotency_key?: string;
  when_busy?: "queue" | "refuse" | "interrupt" | "steer";
  tags?: Record<string, string>;
}

/** The decision about one item. `value` answers a question, `args` replaces the arguments. */
export interface ItemDecision {
  item_id: string;
  decision: "approve" | "reject";
  note?: string;
  value?: unknown;
  args?: Record<string, unknown>;
}

export interface Frame {
  data: string;
  event: string | null;
  id: string | null;
}

export type Filters = Record<string, string | number | readonly string[] | null | undefined>;

/** Penstock at one URL; without one, at the page's own. Every method throws PenstockError. */
export class Client {
  constructor(url?: string, options?: ClientOptions);
  /** Return a run that starts when the caller begins to iterate over its events. */
  run(agent: string, message: string, options?: StartOptions & FollowOptions): Run;
  /** The same for a workflow. The steps' runs are part of its stream. */
  runWorkflow(name: string, options?: StartOptions & FollowOptions): Run;
  /** Return a run that was started before. Its stream begins after the cursor `after`. */
  follow(runId: string, options?: FollowOptions & { after?: string | null; children?: boolean }): Run;
  /** Start a run that nobody follows. */
  start(agent: string, message: string, options?: StartOptions): Promise<RunRecord>;
  record(runId: string): Promise<RunRecord>;
  state(runId: string, at?: number): Promise<Record<string, unknown>>;
  cancel(runId: string): Promise<Record<string, unknown>>;
  /** Yield all pages of a list, with the query parameters of the API as filters. */
  runs(filters?: Filters): AsyncGenerator<RunRecord>;
  approvals(filters?: Filters): AsyncGenerator<ApprovalRecord>;
  workflows(filters?: Filters): AsyncGenerator<Record<string, unknown>>;
  automations(filters?: Filters): AsyncGenerator<Record<string, unknown>>;
  costs(filters?: Filters): AsyncGenerator<Record<string, unknown>>;
  approval(approvalId: string): Promise<ApprovalRecord>;
  /**
   * Decide what `approval` shows: true approves all items, false rejects them. The service refuses
   * the decision with 409 if the request has changed since.
   */
  decide(approval: ApprovalRecord, items: boolean | readonly ItemDecision[], note?: string): Promise<ApprovalRecord>;
  /** Yield a message for each change of approvals, from now on. */
  approvalChanges(options?: { signal?: AbortSignal }): AsyncGenerator<Record<string, unknown>>;
  /** Yield the frames of a run's stream in any dialect, until the stream ends. */
  frames(
    runId: string,
    options?: FollowOptions & { after?: string | null; dialect?: string; include?: "children" | "none" },
  ): AsyncGenerator<Frame>;
  /** Send any request, and return the JSON object of its answer. */
  call(
    method: string,
    path: string,
    options?: { query?: Filters; body?: Record<string, unknown> },
  ): Promise<Record<string, unknown>>;
}

/**
 * A run: iterate over it to get its events. The connection is made again when it breaks, and no event
 * is missed or repeated. If a second iteration begins while the first one goes on, it takes over, and
 * the first one throws PenstockError. `cursor` is where another client, or a second reader, goes on.
 */
export class Run {
  readonly runId: string | null;
  readonly cursor: string | null;
  [Symbol.asyncIterator](): AsyncGenerator<Envelope | Notice>;
  /** Start the run, if it was not started yet, and return its id. */
  start(): Promise<string>;
  /** Follow the run to its end, and return its record. */
  wait(): Promise<RunRecord>;
  cancel(): Promise<Record<string, unknown>>;
}

export class PenstockError extends Error {}
/** No Penstock answers at the URL. */
export class Unreachable extends PenstockError {}
/** A run has not ended within the caller's time. It goes on; its stream continues after `cursor`. */
export class DeadlineReached extends PenstockError {
  readonly cursor: string | null;
}
/** The service refused the request. */
export class ApiError extends PenstockError {
  readonly status: number;
  readonly detail: string;
  /** The invalid fields. */
  readonly errors: readonly { field: string; message: string }[];
}
/** The events at a cursor no longer exist: the stream begins again without a cursor. */
export class CursorGone extends ApiError {}

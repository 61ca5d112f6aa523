// @ts-check
// A client of Penstock for browsers and Node. It needs `fetch` and `ReadableStream` alone.
//
//   const client = new Client("https://penstock.example", { token });
//   for await (const event of client.run("assistant", "Hello")) console.log(event);

import { ApiError, CursorGone, DeadlineReached, PenstockError, Unreachable, refusal } from "./errors.js";
import { Parser } from "./sse.js";

export { ApiError, CursorGone, DeadlineReached, PenstockError, Unreachable };

const REQUEST_MS = 30_000;
// A stream counts as broken after this time without bytes. In it, a healthy server sends three
// keep-alive comments.
const SILENT_MS = 45_000;
const BACKOFF_MS = [500, 1000, 2000, 5000];
const GIVE_UP_MS = 120_000; // of a stream
const CALL_GIVE_UP_MS = 10_000; // of any other request
const TRY_AGAIN = new Set([502, 503, 504]);
const TOO_MANY = 429; // of the user's streams or requests, which may be those that have just broken
// A browser does not tell a page whether nothing answers, or the server does not allow the page.
const PAGE = globalThis.location ? "; if it runs, its PENSTOCK_AUTH_CORS_ORIGINS must name this page's origin" : "";
const TAKEN_OVER =
  "another iteration over this run has begun and goes on from here; for a second reader, call follow(runId) of the client";
const ENDS = new Set(["lifecycle.completed", "lifecycle.failed", "lifecycle.cancelled"]);

/** The type of an event or notice, such as `llm.stream`. */
export const typeOf = (event) => `${event.event.category}.${event.event.action}`;

/** Whether an event is of this type; TypeScript then knows its `data`. */
export const isType = (event, type) => typeOf(event) === type;

/** Whether a frame is what the server says about the stream, and no event of the run. */
export const isNotice = (event) => event.sequence === undefined;

/** Wait so many milliseconds, or until the signal is aborted. */
const sleep = (ms, signal) =>
  new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve(undefined);
    }, ms);
    if (signal?.aborted) abort();
    else signal?.addEventListener("abort", abort, { once: true });
  });

const pathOf = (...segments) => ["/v1", ...segments.map(encodeURIComponent)].join("/");

const withoutEmpty = (fields) =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== null));

const queryOf = (filters) => {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(withoutEmpty(filters))) {
    for (const each of Array.isArray(value) ? value : [value]) query.append(name, String(each));
  }
  const text = query.toString();
  return text && `?${text}`;
};

/** A new key. `crypto.randomUUID` does not exist in pages that come over http from another machine. */
const newKey = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** The milliseconds of `Retry-After`; 0 without it, and for a date. */
const retryAfterMs = ({ headers }) => {
  const text = headers.get("retry-after") ?? "";
  return /^\d{1,5}$/.test(text) ? Number(text) * 1000 : 0;
};

const foreign = (name, cause) =>
  new Unreachable(`something answers at ${name}, but it is no Penstock`, { cause });

/** Limits the time of retries after failures. A success resets the limit. */
class Retries {
  #failures = 0;
  #silentMs = 0; // the time from the first failure in a row to the last one
  #lastMs = 0; // when the last failure was

  constructor(client, giveUpMs) {
    this.client = client;
    this.giveUpMs = giveUpMs;
  }

  renew() {
    this.#failures = 0;
  }

  /** Wait before the next try, for `leastMs` or longer. Throws Unreachable if there is none. */
  async pause(failure, { signal, cause, leastMs = 0 } = {}) {
    const { name, notice, hasAnswered } = this.client.server;
    if (!hasAnswered && cause) throw new Unreachable(`nothing answers at ${name}: ${failure}${PAGE}`, { cause });
    // A computer that sleeps does not try: between two failures, only the time of one try counts.
    const pastMs = Math.min(Date.now() - this.#lastMs, SILENT_MS);
    this.#silentMs = this.#failures === 0 ? 0 : this.#silentMs + pastMs;
    this.#lastMs = Date.now();
    if (this.#silentMs > this.giveUpMs) {
      throw new Unreachable(`${name} does not answer since ${this.giveUpMs / 1000} s: ${failure}`, { cause });
    }
    const ms = Math.max(BACKOFF_MS[Math.min(this.#failures, BACKOFF_MS.length - 1)], Math.min(leastMs, this.giveUpMs));
    this.#failures += 1;
    notice(`connection lost (${failure}); trying again in ${ms / 1000} s`);
    await sleep(ms, signal);
  }
}

/** Penstock at one URL. Every method throws PenstockError. */
export class Client {
  #token;
  #fetch;
  #cookie;

  constructor(url = "", { token, cookie = false, notice = () => {}, fetch = globalThis.fetch } = {}) {
    const base = url.replace(/\/+$/, "");
    this.server = { url: base, name: base || (globalThis.location?.origin ?? "an empty URL"), notice, hasAnswered: false };
    this.#token = token;
    this.#cookie = cookie;
    this.#fetch = (input, init) => fetch(input, init);
  }

  run(agent, message, { deadlineMs, signal, ...options } = {}) {
    return new Run(this, this.#begin("/v1/runs", { agent, message, ...options }), { deadlineMs, signal });
  }

  runWorkflow(name, { deadlineMs, signal, ...options } = {}) {
    const begin = this.#begin(pathOf("workflows", name, "runs"), options);
    return new Run(this, begin, { deadlineMs, signal, children: true });
  }

  follow(runId, options = {}) {
    return new Run(this, runId, options);
  }

  start(agent, message, options = {}) {
    return this.#begin("/v1/runs", { agent, message, ...options })();
  }

  /** Return a function that starts the run. Its repeats have one idempotency key, and start one run. */
  #begin(path, fields) {
    const body = { idempotency_key: newKey(), ...withoutEmpty(fields) };
    return () => this.call("POST", path, { body });
  }

  record(runId) {
    return this.call("GET", pathOf("runs", runId));
  }

  state(runId, at) {
    return this.call("GET", pathOf("runs", runId, "state"), { query: { at } });
  }

  cancel(runId) {
    return this.call("POST", pathOf("runs", runId, "cancel"));
  }

  runs(filters = {}) {
    return this.pages("/v1/runs", "runs", "before", filters);
  }

  approvals(filters = {}) {
    return this.pages("/v1/approvals", "approvals", "after", filters);
  }

  approval(approvalId) {
    return this.call("GET", pathOf("approvals", approvalId));
  }

  decide(approval, items, note) {
    const decision = items === true ? "approve" : "reject";
    const each = Array.isArray(items) ? items : approval.items.map(({ item_id }) => ({ item_id, decision }));
    const path = pathOf("approvals", approval.approval_id, "decision");
    return this.#begin(path, { items: each, note, digest: approval.digest })();
  }

  workflows(filters = {}) {
    return this.pages("/v1/workflows", "workflows", "after", filters);
  }

  automations(filters = {}) {
    return this.pages("/v1/automations", "automations", "after", filters);
  }

  costs(filters = {}) {
    return this.pages("/v1/costs", "costs", "after", filters);
  }

  /** Yield a message for each change of approvals, from now on. */
  async *approvalChanges({ signal } = {}) {
    for await (const frame of this.#frames("/v1/approvals/events", {}, { signal, isEndless: true })) {
      yield JSON.parse(frame.data);
    }
  }

  async *frames(runId, { after, dialect = "canonical", include, deadlineMs, signal } = {}) {
    yield* this.#frames(pathOf("runs", runId, "events"), { dialect, include }, { after, deadlineMs, signal });
  }

  async *pages(path, name, cursor, filters) {
    let following = filters[cursor];
    do {
      const page = await this.call("GET", path, { query: { ...filters, [cursor]: following } });
      yield* page[name];
      following = page.next;
    } while (following);
  }

  async call(method, path, { query = {}, body } = {}) {
    const retries = new Retries(this, CALL_GIVE_UP_MS);
    for (;;) {
      const signal = AbortSignal.timeout(REQUEST_MS);
      let response;
      try {
        response = await this.#send(method, path + queryOf(query), { body, signal, accept: "application/json" });
      } catch (error) {
        if (error instanceof PenstockError) throw error;
        await retries.pause(error.message, { cause: error });
        continue;
      }
      if (TRY_AGAIN.has(response.status)) {
        await retries.pause(`it answered ${response.status}`, { leastMs: retryAfterMs(response) });
        continue;
      }
      if (!response.ok) throw await refusal(response);
      if (response.status === 204) return {};
      try {
        return await response.json();
      } catch (cause) {
        throw foreign(this.server.name, cause);
      }
    }
  }

  /** Send a request. A function as token is asked once more if the service answers 401. */
  async #send(method, target, { body, signal, accept, cursor }) {
    const isFunction = typeof this.#token === "function";
    let token = isFunction ? await this.#token() : this.#token;
    const headers = {
      accept,
      // Some proxies that compress hold events until the stream has ended. Browsers ignore this.
      ...(accept === "text/event-stream" && { "accept-encoding": "identity" }),
      ...(cursor && { "last-event-id": cursor }),
      ...(body && { "content-type": "application/json" }),
      ...(this.#cookie && method !== "GET" && (await this.#csrf())),
    };
    for (let isFirst = true; ; isFirst = false) {
      const authorization = token ? { authorization: `Bearer ${token}` } : {};
      const response = await this.#fetch(this.server.url + target, {
        method,
        headers: { ...headers, ...authorization },
        body: body && JSON.stringify(body),
        signal,
        credentials: this.#cookie ? "include" : "omit",
        cache: "no-store",
      });
      this.server.hasAnswered = true;
      if (response.status !== 401 || !isFunction || !isFirst) return response;
      const next = await this.#token();
      if (next === token) return response;
      await response.body?.cancel();
      token = next;
    }
  }

  async #csrf() {
    const { csrf_token: token, header } = await this.call("GET", "/v1/csrf");
    return { [header]: token };
  }

  async *#frames(path, query, { after = null, deadlineMs, signal, isEndless = false }) {
    const retries = new Retries(this, GIVE_UP_MS);
    const end = deadlineMs === undefined ? Infinity : Date.now() + deadlineMs;
    let cursor = after;
    for (;;) {
      const connection = new Connection(signal, end);
      let hasFrames = false;
      let failure = "the stream ended";
      let leastMs = 0;
      let cause;
      try {
        const target = path + queryOf(query);
        const response = await this.#send("GET", target, { signal: connection.signal, accept: "text/event-stream", cursor });
        if (response.status === 204) return;
        if (response.status === 410 && isEndless && cursor) {
          cursor = null; // NATS has lost what came after the cursor, so begin now
        } else if (TRY_AGAIN.has(response.status) || response.status === TOO_MANY) {
          failure = `it answered ${response.status}${response.status === TOO_MANY ? " (too many streams or requests)" : ""}`;
          leastMs = retryAfterMs(response);
        } else if (response.status !== 200) {
          throw await refusal(response);
        } else if (!response.headers.get("content-type")?.startsWith("text/event-stream")) {
          throw foreign(this.server.name); // such as the page that a server of pages has for all paths
        } else {
          for await (const frame of connection.read(response)) {
            retries.renew();
            if (frame === null) continue;
            cursor = frame.id ?? cursor;
            hasFrames = true;
            yield frame;
          }
        }
      } catch (error) {
        if (error instanceof PenstockError) throw error;
        signal?.throwIfAborted();
        [failure, cause] = [error.message, error];
      } finally {
        connection.close();
      }
      if (Date.now() >= end) throw new DeadlineReached(deadlineMs, cursor);
      if (hasFrames && !isEndless && cause === undefined) {
        if (cursor === null) return; // without ids, a new connection would repeat all frames
        continue;
      }
      await retries.pause(failure, { signal, cause, leastMs: Math.min(leastMs, end - Date.now()) });
    }
  }
}

/** One connection of a stream, which ends by the caller's signal, at a time, or by silence. */
class Connection {
  #control = new AbortController();
  #timer;
  #outer;
  #end;
  #abort = () => this.#control.abort(this.#outer.reason);

  constructor(outer, end) {
    this.#outer = outer;
    this.#end = end;
    if (outer?.aborted) this.#abort();
    else outer?.addEventListener("abort", this.#abort, { once: true });
    this.#watch();
  }

  get signal() {
    return this.#control.signal;
  }

  #watch() {
    clearTimeout(this.#timer);
    const ms = Math.max(Math.min(SILENT_MS, this.#end - Date.now()), 0);
    this.#timer = setTimeout(() => this.#control.abort(new Error("the server is silent")), ms);
  }

  /** Yield the frames of a response, and null after bytes without one. */
  async *read(response) {
    const parser = new Parser();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        this.#watch();
        yield null;
        yield* parser.feed(value);
      }
    } finally {
      await reader.cancel().catch(() => {});
    }
  }

  close() {
    clearTimeout(this.#timer);
    this.#outer?.removeEventListener("abort", this.#abort);
    this.#control.abort();
  }
}

/**
 * A run: iterate over it to get its events. The connection is made again when it breaks, and no event
 * is missed or repeated. An iteration that was ended continues with the next one. If a second one
 * begins while the first one goes on, it takes over, and the first one throws PenstockError.
 */
export class Run {
  #client;
  #begin;
  #options;
  #iterations = 0;

  constructor(client, begin, { after = null, children = false, deadlineMs, signal } = {}) {
    this.runId = typeof begin === "string" ? begin : null;
    this.cursor = after;
    this.#client = client;
    this.#begin = begin;
    this.#options = { include: children ? "children" : undefined, deadlineMs, signal };
  }

  async *[Symbol.asyncIterator]() {
    this.#options.signal?.throwIfAborted();
    const number = (this.#iterations += 1);
    const runId = await this.start();
    const options = { ...this.#options, after: this.cursor };
    for await (const frame of this.#client.frames(runId, options)) {
      const event = JSON.parse(frame.data);
      if (number !== this.#iterations) throw new PenstockError(TAKEN_OVER); // each would move the other's cursor
      this.cursor = frame.id ?? this.cursor;
      yield event;
      if (event.run_id === runId && ENDS.has(typeOf(event))) return;
    }
  }

  /** Start the run, if it was not started yet, and return its id. */
  async start() {
    if (this.runId === null) this.runId = (await this.#begin()).run_id;
    return this.runId;
  }

  /** Follow the run to its end, and return its record. */
  async wait() {
    for await (const _ of this);
    return this.#client.record(await this.start());
  }

  async cancel() {
    return this.#client.cancel(await this.start());
  }
}

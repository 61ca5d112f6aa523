// A runner for CopilotKit's runtime: it runs, reconnects to and stops the runs of Penstock.
//
// CopilotKit's own runner keeps threads in memory, ends a run for its user when the connection to
// the agent breaks, and does not cancel a run that the user stops. Penstock keeps the runs. So this
// runner reads a thread from Penstock when a browser connects, continues a stream that breaks at the
// event where it broke, and cancels a run that is stopped.

import { AgentRunner } from "@copilotkit/runtime/v2";
import { Observable } from "rxjs";

const TERMINAL = new Set(["RUN_FINISHED", "RUN_ERROR"]);
// The edge ends a stream that it cannot continue with this error; the run goes on.
const INTERRUPTED = "stream_interrupted";
const OPEN = new Set(["queued", "running"]);
const MAX_THREADS = 10_000; // of which the headers of the last request are kept, for `stop`
const RETRY_MS = [100, 250, 500, 1000, 2000];
const REQUEST_MS = 20_000;

export class PenstockAgentRunner extends AgentRunner {
  #url;
  #agents;
  #headers;
  #retryMs;
  #callers = new Map(); // the headers of the last request, by thread

  constructor({ url, agents = {}, headers = {}, retrySeconds = 60 }) {
    super();
    this.#url = url.replace(/\/+$/, "");
    this.#agents = agents;
    this.#headers = headers;
    this.#retryMs = retrySeconds * 1000;
  }

  run({ threadId, agent, input }) {
    const headers = this.#callersHeaders(threadId, agent.headers);
    const path = this.#path(agent.agentId ?? "default");
    return this.#observe(threadId, (abort) => this.#runEvents(path, threadId, input, headers, abort));
  }

  connect({ threadId, agentId, headers: given }) {
    const headers = this.#callersHeaders(threadId, given);
    const path = this.#path(agentId ?? "default");
    return this.#observe(threadId, (abort) => this.#threadEvents(path, threadId, null, headers, abort));
  }

  async isRunning({ threadId }) {
    return (await this.#openRun(threadId)) !== undefined;
  }

  async stop({ threadId, runId }) {
    const open = await this.#openRun(threadId);
    if (open === undefined) return false;
    if (runId !== undefined && (await this.#clientsRunId(open, threadId)) !== runId) return false;
    const url = `${this.#url}/v1/runs/${open.run_id}/cancel`;
    const answer = await fetch(url, {
      method: "POST",
      headers: this.#callers.get(threadId) ?? this.#headers,
      signal: AbortSignal.timeout(REQUEST_MS),
    });
    await answer.body?.cancel();
    if (answer.status === 409) return false; // the run has just ended
    if (!answer.ok) throw new Error(`Penstock answers ${answer.status} to the cancel of ${open.run_id}`);
    return true;
  }

  #path(agentId) {
    return `${this.#url}/agui/${encodeURIComponent(this.#agents[agentId] ?? agentId)}`;
  }

  #callersHeaders(threadId, given) {
    const headers = { ...this.#headers, ...given };
    this.#callers.delete(threadId);
    this.#callers.set(threadId, headers);
    if (this.#callers.size > MAX_THREADS) this.#callers.delete(this.#callers.keys().next().value);
    return headers;
  }

  // An observable never ends with an error: the runtime's process would end with an error that
  // nobody handles.
  #observe(threadId, events) {
    return new Observable((subscriber) => {
      const abort = new AbortController();
      (async () => {
        try {
          for await (const event of events(abort.signal)) subscriber.next(event);
        } catch (error) {
          if (!abort.signal.aborted) subscriber.next(runError(threadId, error));
        }
        subscriber.complete();
      })();
      return () => abort.abort();
    });
  }

  // The events of a leg: of a new run, or of an answer to an interrupt. When the stream breaks before
  // its first event, the same request is sent again, which Penstock takes for the same run.
  async *#runEvents(path, threadId, input, headers, abort) {
    const body = JSON.stringify(input);
    const retry = new Retry(this.#retryMs, abort);
    const place = { id: null };
    let isRepeated = false;
    while (place.id === null) {
      let answer;
      try {
        answer = await fetch(path, {
          method: "POST",
          headers: { ...headers, "content-type": "application/json", accept: "text/event-stream" },
          body,
          signal: abort,
        });
      } catch (error) {
        isRepeated = true; // Penstock may have taken the request
        await retry.after(error);
        continue;
      }
      if (isRepeated && answer.status === 409) {
        await answer.body?.cancel();
        break; // the first request has decided the interrupt
      }
      if (answer.status === 503 || answer.status === 429) {
        await retry.after(await refusal(answer));
        continue;
      }
      if (!answer.ok) throw await refusal(answer);
      for await (const event of eventsOf(answer, place)) {
        yield event;
        if (TERMINAL.has(event.type)) return;
      }
      if (place.id === null) {
        isRepeated = true;
        await retry.after(new Error("the stream has ended before its first event"));
      }
    }
    yield* this.#threadEvents(path, threadId, place.id, headers, abort, true);
  }

  // The state of a thread and then its events, until no run is active; with a place, the events
  // after this place. With `oneLeg`, the events end with the leg.
  async *#threadEvents(path, threadId, after, headers, abort, oneLeg = false) {
    const retry = new Retry(this.#retryMs, abort);
    const place = { id: after };
    let isOpen = after !== null; // whether the last run that was seen has not ended
    for (;;) {
      const url = `${path}/threads/${encodeURIComponent(threadId)}/events?prelude=1&until=idle`;
      const position = place.id === null ? {} : { "last-event-id": place.id };
      let answer;
      try {
        answer = await fetch(url, {
          headers: { ...headers, ...position, accept: "text/event-stream" },
          signal: abort,
        });
      } catch (error) {
        await retry.after(error);
        continue;
      }
      if (answer.status === 404 && place.id === null) return; // a thread without a run
      if (answer.status === 204) return;
      if (answer.status === 503 || answer.status === 429) {
        await retry.after(await refusal(answer));
        continue;
      }
      if (!answer.ok) throw await refusal(answer);
      const before = place.id;
      for await (const event of eventsOf(answer, place)) {
        isOpen = !TERMINAL.has(event.type);
        yield event;
        if (oneLeg && !isOpen) return;
      }
      if (!isOpen) return;
      if (place.id === null) throw new Error("the stream has broken; connect again");
      if (place.id !== before) retry.begin();
      await retry.after(new Error("the stream has broken"));
    }
  }

  async #openRun(threadId) {
    const url = `${this.#url}/v1/runs?session_id=${encodeURIComponent(threadId)}&limit=20`;
    const headers = this.#callers.get(threadId) ?? this.#headers;
    const answer = await fetch(url, { headers, signal: AbortSignal.timeout(REQUEST_MS) });
    if (!answer.ok) throw await refusal(answer);
    // The newest is first. Of a thread, one run is active at a time, and further ones are queued.
    return (await answer.json()).runs.findLast((run) => OPEN.has(run.status));
  }

  // The runId that the client chose for the present leg of a run.
  async #clientsRunId(run, threadId) {
    const abort = new AbortController();
    const headers = this.#callers.get(threadId) ?? this.#headers;
    const events = this.#threadEvents(this.#path(run.agent), threadId, null, headers, abort.signal);
    try {
      for await (const event of events) {
        const named = event.metadata?.penstock?.run_id;
        if (event.type === "RUN_STARTED" && named === run.run_id) return event.runId;
      }
    } finally {
      abort.abort();
    }
    return undefined;
  }
}

// Waits between attempts, longer each time, for a limited time.
class Retry {
  constructor(limitMs, abort) {
    this.limitMs = limitMs;
    this.abort = abort;
    this.begin();
  }

  begin() {
    this.until = Date.now() + this.limitMs;
    this.attempt = 0;
  }

  async after(error) {
    this.abort.throwIfAborted();
    if (Date.now() > this.until) throw error;
    const waitMs = RETRY_MS[Math.min(this.attempt++, RETRY_MS.length - 1)] * (0.75 + Math.random() / 2);
    await new Promise((resolve) => setTimeout(resolve, waitMs));
    this.abort.throwIfAborted();
  }
}

// The events of a response, up to its end or to the place where it breaks. `place.id` is the cursor
// of the newest one.
async function* eventsOf(answer, place) {
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for await (const chunk of answer.body) {
      const frames = (rest + decoder.decode(chunk, { stream: true })).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) {
        const lines = frame.split("\n");
        const data = lines.filter((line) => line.startsWith("data:"));
        const id = lines.find((line) => line.startsWith("id:"));
        if (data.length === 0) continue;
        const event = JSON.parse(data.map((line) => line.slice(5).trimStart()).join("\n"));
        if (event.type === "RUN_ERROR" && event.code === INTERRUPTED) return;
        if (id !== undefined) place.id = id.slice(3).trim();
        yield event;
      }
    }
  } catch (error) {
    if (error instanceof SyntaxError) throw error;
    // The connection has broken. The caller continues at `place`.
  }
}

async function refusal(answer) {
  const text = await answer.text();
  const error = new Error(`Penstock answers ${answer.status}: ${text.slice(0, 500)}`);
  error.code = `http_${answer.status}`;
  return error;
}

function runError(threadId, error) {
  console.error(`penstock: thread ${threadId}: ${error?.message ?? error}`);
  return { type: "RUN_ERROR", message: error?.message ?? String(error), code: error?.code ?? "penstock" };
}

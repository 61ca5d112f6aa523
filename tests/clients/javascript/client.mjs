// Follows runs with @penstock/client, and prints what it saw as JSON: node client.mjs URL CASE
import { ApiError, Client, CursorGone, DeadlineReached, Unreachable, isNotice, isType } from "@penstock/client";
import { Parser } from "../node_modules/@penstock/client/sse.js";

const [url, name] = process.argv.slice(2);
const APPROVAL = "ap-1";

/** Follow a run and approve what it asks; return the events' sequences. */
async function follow(client, options) {
  const run = client.run("assistant", "hi", options);
  const seen = [];
  for await (const event of run) {
    if (isNotice(event)) continue;
    seen.push(event.sequence);
    if (isType(event, "lifecycle.paused")) {
      await client.decide(await client.approval(event.data.approval_id), true);
    }
  }
  const record = await client.record(await run.start());
  return { seen, status: record.status, cursor: run.cursor };
}

/** Return the error's class and text. */
async function refused(call) {
  try {
    return { answer: await call() };
  } catch (error) {
    return { name: error.name, text: error.message, status: error.status, cursor: error.cursor };
  }
}

const CASES = {
  whole: () => follow(new Client(url)),
  deadline: () => refused(() => new Client(url).run("assistant", "hi", { deadlineMs: 300 }).wait()),
  async changed() {
    const client = new Client(url);
    const approval = await client.approval(APPROVAL);
    return refused(() => client.decide({ ...approval, digest: "another" }, false, "too risky"));
  },
  async gone() {
    return refused(() => new Client(url).follow(process.argv[4], { after: "9-0" }).wait());
  },
  pages: () => refused(() => new Client(url).follow(process.argv[4]).wait()),
  nowhere: () => refused(() => new Client("http://127.0.0.1:1").run("assistant", "hi").wait()),
  /** Nothing is sent if the caller has gone before. */
  async gone_before() {
    let sent = 0;
    const client = new Client(url, { fetch: async () => (sent += 1) });
    const ended = await refused(() => client.run("a", "b", { signal: AbortSignal.abort(new Error("gone")) }).wait());
    return { sent, ...ended };
  },
  /** The computer sleeps for an hour after the first failure, and its network comes back later. */
  async slept() {
    let failures = 0;
    const fetch = async (...request) => {
      failures += 1;
      if (failures < 2 || failures > 3) return globalThis.fetch(...request);
      if (failures === 3) Date.now = () => 3_600_000 + performance.timeOrigin + performance.now();
      throw new TypeError("Failed to fetch");
    };
    return follow(new Client(url, { fetch }));
  },
  /** Return the encodings that a stream and a call accept. */
  async encodings() {
    const sent = [];
    const fetch = (target, init) => {
      sent.push(init.headers["accept-encoding"] ?? null);
      return globalThis.fetch(target, init);
    };
    await follow(new Client(url, { fetch }));
    return [...new Set(sent)];
  },
  /** A page that came over http from another machine has no `crypto.randomUUID`. */
  async intranet() {
    crypto.randomUUID = undefined;
    return refused(() => new Client(url).start("assistant", "hi"));
  },
  /** Return the milliseconds that a long event in small pieces takes. */
  long() {
    const text = `data: ${"x".repeat(2 ** 23)}\n\n`;
    const [parser, began] = [new Parser(), performance.now()];
    const frames = [];
    for (let at = 0; at < text.length; at += 8192) frames.push(...parser.feed(text.slice(at, at + 8192)));
    return { lengths: frames.map(({ data }) => data.length), ms: performance.now() - began };
  },
  async tokens() {
    const tokens = ["old", "new"];
    const sent = [];
    const fetch = async (_, { headers }) => {
      sent.push(headers.authorization);
      return new Response("{}", { status: sent.length === 1 ? 401 : 200 });
    };
    await new Client(url, { token: () => tokens.shift(), fetch }).record("r");
    return sent;
  },
  async stopped() {
    const control = new AbortController();
    const run = new Client(url).run("assistant", "hi", { signal: control.signal });
    const seen = [];
    const ended = await refused(async () => {
      for await (const event of run) {
        seen.push(event.sequence);
        if (seen.length === 5) setTimeout(() => control.abort(new Error("enough")), 50);
      }
    });
    return { seen, ...ended };
  },
  async listed() {
    const client = new Client(url);
    const runs = [];
    for await (const run of client.runs({ tag: ["a=b", "c=d"] })) runs.push(run.run_id);
    return runs;
  },
  /** Return what was seen and what the client said, while the server is full at times. */
  async full() {
    const notices = [];
    const found = await follow(new Client(url, { notice: (text) => notices.push(text) }));
    return { ...found, notices };
  },
  /** A second loop over a run begins while the first one goes on. */
  async twice() {
    const run = new Client(url).run("assistant", "hi");
    const [seen, first] = [[], run[Symbol.asyncIterator]()];
    seen.push((await first.next()).value.sequence);
    for await (const { sequence } of run) {
      seen.push(sequence);
      if (sequence === 3) break;
    }
    return { seen, ...(await refused(() => first.next())) };
  },
  /** Follow a run until it is cancelled; print its id first. */
  async killed() {
    const run = new Client(url, { token: process.argv[4] }).run("assistant", "slow", { session_id: "node" });
    console.log(await run.start());
    const seen = [];
    for await (const event of run) if (!isNotice(event)) seen.push(event.sequence);
    return seen;
  },
  /** The parser gives the same frames however the text is divided. */
  parsed() {
    const text = "\u{1F600}: c\r\nid: 1\r\nevent: a\r\ndata: x\r\ndata: y\u2028z\r\n\r\nid: 2\rdata:q\r\r\n\ndata\n\n";
    const whole = JSON.stringify(new Parser().feed(`${text}`));
    for (let first = 0; first <= text.length; first += 1) {
      for (let second = first; second <= text.length; second += 1) {
        const parser = new Parser();
        const parts = [text.slice(0, first), text.slice(first, second), text.slice(second)];
        const found = JSON.stringify(parts.flatMap((part) => parser.feed(part)));
        if (found !== whole) return { first, second, found, whole };
      }
    }
    return JSON.parse(whole);
  },
};

if (!(ApiError.prototype instanceof Error && CursorGone && DeadlineReached && Unreachable)) process.exit(1);
console.log(JSON.stringify(await CASES[name]()));

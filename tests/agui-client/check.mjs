#!/usr/bin/env node
// Many streams through the REAL @ag-ui/client of one version, in one process: a case a line on
// stdin, a verdict a line on stdout, in the same order.
//
//   node check.mjs DIR        DIR holds the node_modules of the version
//
// case:    {"body": <text/event-stream>, "input"?: {threadId, runId, messages, state}, "chunk"?: bytes}
// verdict: {"errors": [], "warnings": [], "terminals": [], "events": n, "messages": [], "state": …,
//           "pendingInterrupts": […] | null}
import path from 'node:path';
import readline from 'node:readline';
import { createRequire } from 'node:module';

const require = createRequire(path.join(path.resolve(process.argv[2]), 'package.json'));
const { HttpAgent } = require('@ag-ui/client');

let warnings = [];
const text = (value) => (value && value.message) || String(value);
console.warn = (...said) => warnings.push(said.map(text).join(' '));
console.error = (...said) => warnings.push('error: ' + said.map(text).join(' '));
let body = Buffer.alloc(0);
let chunk = 0;
globalThis.fetch = async () => {
  const step = chunk || body.length || 1;
  const stream = new ReadableStream({
    start(controller) {
      for (let at = 0; at < body.length; at += step) {
        controller.enqueue(new Uint8Array(body.subarray(at, at + step)));
      }
      controller.close();
    },
  });
  return new Response(stream, { headers: { 'content-type': 'text/event-stream' } });
};

async function check(one) {
  warnings = [];
  body = Buffer.from(one.body, 'utf8');
  chunk = one.chunk || 0;
  const input = one.input || {};
  const agent = new HttpAgent({
    url: 'http://stream.invalid/',
    threadId: input.threadId || 'thread-1',
    initialMessages: input.messages || [],
    initialState: input.state ?? {},
  });
  const verdict = { errors: [], terminals: [], events: 0 };
  const subscriber = {
    onEvent: ({ event }) => {
      verdict.events += 1;
      if (event.type === 'RUN_FINISHED') verdict.terminals.push(event.outcome?.type ?? 'finished');
      if (event.type === 'RUN_ERROR') verdict.terminals.push('error');
    },
  };
  try {
    await agent.runAgent({ runId: input.runId }, subscriber);
  } catch (error) {
    verdict.errors.push(text(error).slice(0, 2000));
  }
  await new Promise((resolve) => setImmediate(resolve));
  return {
    ...verdict,
    warnings,
    messages: agent.messages,
    state: agent.state,
    pendingInterrupts: agent.pendingInterrupts ?? null,
  };
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await check(JSON.parse(line))) + '\n');
}

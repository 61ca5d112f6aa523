// OpenAI's own client for JavaScript, unchanged, as a process: see client.py.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { OpenAI, APIError } = createRequire(`${process.argv[2]}/`)("openai");

async function all(answer, cut) {
  const events = [];
  for await (const event of answer) {
    events.push(event);
    if (events.length === cut) break;
  }
  return events;
}

const calls = {
  create: (client, call) => client.responses.create(call.body),
  stream: async (client, call) => all(await client.responses.create({ ...call.body, stream: true }), call.cut),
  resume: async (client, call) => {
    const after = call.after == null ? {} : { starting_after: call.after };
    return all(await client.responses.retrieve(call.id, { stream: true, ...after }));
  },
  final: (client, call) =>
    client.responses.stream({ response_id: call.id, starting_after: call.after }).finalResponse(),
  retrieve: (client, call) => client.responses.retrieve(call.id),
  cancel: (client, call) => client.responses.cancel(call.id),
  inputs: async (client, call) => all(await client.responses.inputItems.list(call.id)),
  models: async (client) => (await all(await client.models.list())).map((each) => each.id),
  chat: async (client, call) => {
    const answer = await client.chat.completions.create(call.body);
    return call.body.stream ? all(answer) : answer;
  },
};

const clients = {};
for await (const line of createInterface({ input: process.stdin })) {
  const call = JSON.parse(line);
  const baseURL = `${call.url}/openai/v1`;
  const client = (clients[baseURL] ??= new OpenAI({ baseURL, apiKey: "none", timeout: 60_000 }));
  let result;
  try {
    result = { ok: await calls[call.do](client, call) };
  } catch (error) {
    const status = error instanceof APIError ? (error.status ?? null) : null;
    result = { error: error.error ?? String(error), status, type: error.constructor.name };
  }
  console.log(JSON.stringify(result));
}

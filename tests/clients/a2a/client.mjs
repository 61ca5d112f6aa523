// The official A2A client for JavaScript, unchanged, as a process: see client.py.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(`${process.argv[2]}/`);
const { ClientFactory, ClientFactoryOptions } = require("@a2a-js/sdk/client");
const { CancelTaskRequest, GetTaskRequest, SendMessageRequest, StreamResponse, SubscribeToTaskRequest, Task } =
  require("@a2a-js/sdk");

// Fold a response into the task, as the protocol says: the SDK has no function for it.
function folded(task, response) {
  const { task: whole, statusUpdate, artifactUpdate } = StreamResponse.toJSON(response);
  if (whole) return { artifacts: [], history: [], ...whole };
  if (statusUpdate) {
    if (task.status.message) task.history.push(task.status.message);
    Object.assign(task, { status: statusUpdate.status, metadata: { ...task.metadata, ...statusUpdate.metadata } });
  } else {
    const { artifact, append } = artifactUpdate;
    const at = task.artifacts.findIndex(({ artifactId }) => artifactId === artifact.artifactId);
    if (append && at >= 0) task.artifacts[at].parts.push(...artifact.parts);
    else task.artifacts.splice(at < 0 ? task.artifacts.length : at, at < 0 ? 0 : 1, artifact);
  }
  return task;
}

async function followed(responses, cut) {
  let task;
  let frames = 0;
  for await (const response of responses) {
    task = folded(task, response);
    if (++frames === cut) break;
  }
  return task;
}

const calls = {
  send_message: (client, call, options) =>
    followed(client.sendMessageStream(SendMessageRequest.fromJSON(call.request), options), call.cut),
  subscribe: (client, call, options) =>
    followed(client.resubscribeTask(SubscribeToTaskRequest.fromJSON(call.request), options)),
  get_task: async (client, call, options) =>
    Task.toJSON(await client.getTask(GetTaskRequest.fromJSON(call.request), options)),
  cancel_task: async (client, call, options) =>
    Task.toJSON(await client.cancelTask(CancelTaskRequest.fromJSON(call.request), options)),
};

async function told(call) {
  const preferred = { preferredTransports: [call.binding] };
  const factory = new ClientFactory(ClientFactoryOptions.createFrom(ClientFactoryOptions.default, preferred));
  const client = await factory.createFromUrl(`${call.url}/`);
  return calls[call.method](client, call, { serviceParameters: call.headers });
}

for await (const line of createInterface({ input: process.stdin })) {
  const call = JSON.parse(line);
  const raised = error => ({ raised: error.constructor.name, text: String(error.message) });
  told(call)
    .catch(raised)
    .then(answer => console.log(JSON.stringify({ number: call.number, told: answer })));
}

// Drives the chat class of an unchanged package `ai`: one JSON command a line on standard input, one
// JSON answer a line. `node client.mjs FOLDER PACKAGE`: FOLDER has node_modules, PACKAGE is `ai6`.
//
// open {chat, api, cut?, messages?, transport?}  a new chat; the first response breaks after `cut`
//                                                frames; `transport` is a module that exports
//                                                ExactTransport
// send {text} | regenerate | resume | stop | answer {id, approved, reason} | output {toolCallId,
// output}                                        then the chat's state
// state                                          the state as it is now
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const [folder, name] = process.argv.slice(2);
const require = createRequire(`${folder}/x.js`);
const found = require.resolve(name);
const module = found.replace(/index\.js$/, 'index.mjs'); // an older version has both kinds
const ai = await import(pathToFileURL(existsSync(module) ? module : found));
const {
  lastAssistantMessageIsCompleteWithApprovalResponses: approved = () => false, // not in version 5
  lastAssistantMessageIsCompleteWithToolCalls: completed,
} = ai;
const isAnswered = given =>
  (approved(given) || completed(given)) &&
  !given.messages.at(-1).parts.some(part => part.state === 'approval-requested');

class State {
  messages = [];
  status = 'ready';
  error = undefined;
  pushMessage = message => { this.messages = [...this.messages, message]; };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (at, message) => {
    this.messages = this.messages.map((each, index) => (index === at ? this.snapshot(message) : each));
  };
  snapshot = value => structuredClone(value);
}

class Chat extends ai.AbstractChat {
  constructor(options) {
    const state = new State();
    state.messages = options.messages ?? [];
    super({ ...options, state });
  }
}

// Break the body after so many frames, as a lost connection does in a browser.
const broken = (body, frames) => {
  let text = '';
  const decoder = new TextDecoder();
  const reader = body.getReader();
  return new ReadableStream({
    async pull(controller) {
      const { done, value } = await reader.read();
      if (done) return controller.close();
      text += decoder.decode(value, { stream: true });
      const found = text.split('\n\n');
      if (found.length <= frames) return controller.enqueue(value);
      void reader.cancel();
      const kept = found.slice(0, frames).map(each => each + '\n\n').join('');
      const sent = text.length - decoder.decode(value).length;
      controller.enqueue(new TextEncoder().encode(kept.slice(sent)));
      // The parser gets these bytes before the error, which discards what is not read yet.
      await new Promise(resolve => setTimeout(resolve, 20));
      controller.error(new TypeError('network error'));
    },
  }, { highWaterMark: 0 });
};

let chat, data, errors, requests, sends;
const open = async ({ chat: id, api, cut, messages, transport, automatic = true }) => {
  data = []; errors = []; requests = []; sends = [];
  let toCut = cut;
  const fetch = async (address, init) => {
    requests.push({ method: init.method, url: String(address), body: init.body ?? null });
    const response = await globalThis.fetch(address, init);
    if (toCut == null || response.body == null) return response;
    const frames = toCut;
    toCut = null;
    return new Response(broken(response.body, frames), response);
  };
  const made = transport
    ? new (await import(transport)).ExactTransport({ api, fetch })
    : new ai.DefaultChatTransport({
        api,
        fetch,
        // Version 5 appends its path behind a query.
        ...(name === 'ai5' && {
          prepareReconnectToStreamRequest: ({ id }) => ({
            api: api.replace(/(\?|$)/, `/${encodeURIComponent(id)}/stream$1`),
          }),
        }),
      });
  chat = new Chat({
    id, messages, transport: made,
    ...(automatic && { sendAutomaticallyWhen: isAnswered }),
    onError: error => errors.push(error.message),
    onData: part => data.push(part),
  });
};

const state = () => ({
  status: chat.status, messages: chat.messages, data, errors, requests,
  error: chat.error?.message ?? null,
});

const settled = async () => {
  // An answer sends a request by itself, without a promise to wait for.
  for (let idle = 0; idle < 3; idle += ['ready', 'error'].includes(chat.status) ? 1 : -idle) {
    await new Promise(resolve => setTimeout(resolve, 5));
  }
};

const commands = {
  open,
  send: ({ text }) => chat.sendMessage({ text }),
  regenerate: () => chat.regenerate(),
  resume: () => chat.resumeStream(),
  begin: ({ text }) => { void chat.sendMessage({ text }); },
  answer: async ({ id, approved, reason }) => {
    await chat.addToolApprovalResponse({ id, approved, reason });
    await settled();
  },
  output: async ({ toolCallId, output }) => {
    await chat.addToolOutput({ tool: 'any', toolCallId, output });
    await settled();
  },
  again: () => chat.sendMessage(),
  stop: () => chat.stop(),
  settle: settled,
  state: () => {},
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...given } = JSON.parse(line);
  let failed = null;
  try {
    await commands[command](given);
  } catch (error) {
    failed = String(error.stack ?? error);
  }
  process.stdout.write(JSON.stringify(failed ? { failed } : state()) + '\n');
}

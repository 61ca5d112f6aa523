// The client that CopilotKit's browser code uses, driven by lines on stdin, one JSON object each:
//   {"do": "run", "agent": A, "thread": T, "text": "…"} | {"do": "approve", …} | {"do": "connect", …}
//   {"do": "stop", …}
// Answers with one line for each: {"text", "messages", "interrupts", "events", "error"}.
import { createInterface } from "node:readline";

import { ProxiedCopilotRuntimeAgent } from "@copilotkit/core";

const runtimeUrl = process.argv[2];
const agents = new Map();

function agentOf({ agent, thread, fresh }) {
  const key = `${agent} ${thread}`;
  if (fresh || !agents.has(key)) {
    const made = new ProxiedCopilotRuntimeAgent({ runtimeUrl, agentId: agent, threadId: thread });
    made.threadId = thread;
    agents.set(key, made);
  }
  return agents.get(key);
}

async function perform(asked) {
  const agent = agentOf(asked);
  const events = [];
  const subscriber = { onEvent: ({ event }) => void events.push(event.type) };
  let error = null;
  try {
    if (asked.do === "run") {
      agent.addMessage({ id: crypto.randomUUID(), role: "user", content: asked.text });
      await agent.runAgent({}, subscriber);
    } else if (asked.do === "approve") {
      const resume = agent.pendingInterrupts.map((each) => ({
        interruptId: each.id,
        status: "resolved",
        payload: { approved: true },
      }));
      await agent.runAgent({ resume }, subscriber);
    } else if (asked.do === "connect") {
      await agent.connectAgent({}, subscriber);
    } else if (asked.do === "stop") {
      agent.abortRun();
    }
  } catch (caught) {
    error = String(caught?.message ?? caught);
  }
  const messages = agent.messages.map(({ role, content }) => ({ role, content: content ?? "" }));
  const interrupts = (agent.pendingInterrupts ?? []).map(({ message }) => message);
  return { messages, interrupts, events, error };
}

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  perform(asked).then((answer) => console.log(JSON.stringify({ id: asked.id, ...answer })));
}

// A CopilotKit runtime whose agents are Penstock's: `node runtime.mjs PENSTOCK_URL [PORT]`.
// Prints its address. What it is not prepared for ends it, as it would end a user's server.
import { createServer } from "node:http";

import { HttpAgent } from "@ag-ui/client";
import { CopilotRuntime, createCopilotRuntimeHandler, InMemoryAgentRunner } from "@copilotkit/runtime/v2";
import { createCopilotNodeHandler } from "@copilotkit/runtime/v2/node";
import { PenstockAgentRunner } from "@penstock/copilotkit";

const [url, port = "0"] = process.argv.slice(2);
const agent = (id) => new HttpAgent({ url: `${url}/agui/${id}` });
const runtime = new CopilotRuntime({
  agents: { assistant: agent("assistant"), vana: agent("vana") },
  runner: process.env.IN_MEMORY ? new InMemoryAgentRunner() : new PenstockAgentRunner({ url }),
});
const handler = createCopilotRuntimeHandler({ runtime, basePath: "/api/copilotkit" });
const server = createServer(createCopilotNodeHandler(handler));
server.listen(Number(port), "127.0.0.1", () => {
  console.log(`http://127.0.0.1:${server.address().port}/api/copilotkit`);
});

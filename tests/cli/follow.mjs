// node follow.mjs <the folder of its package> <url> <event names, by commas>
// An EventSource: prints each thing that it sees as a line of JSON, until it is killed.
import { createRequire } from "node:module";

const [folder, url, types] = process.argv.slice(2);
// Node's own EventSource (undici, up to Node 22) gives up at a refused connection, which the
// standard has it try again
const { EventSource } = createRequire(import.meta.url)(folder);
const say = (what) => console.log(JSON.stringify(what));
const source = new EventSource(url);
for (const type of types.split(",")) {
  source.addEventListener(type, (event) => say({ type, id: event.lastEventId, data: event.data }));
}
source.onopen = () => say({ type: "open" });
source.onerror = () => say({ type: source.readyState === source.CLOSED ? "closed" : "error" });

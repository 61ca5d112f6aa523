// A small page over @penstock/react. It reports what it shows to the test, decides by a click on its
// own button, and is loaded again once, in the middle of the run.
import { Client } from "@penstock/client";
import { Approval, PenstockProvider, useApprovals, useRun } from "@penstock/react";
import { StrictMode, useEffect } from "react";
import { createRoot } from "react-dom/client";

const words = new URLSearchParams(location.search);
const count = Number(words.get("events"));
const client = new Client(words.get("url") ?? "", count ? { fetch: async () => answered(count) } : {});
const report = (body) => navigator.sendBeacon("/report", JSON.stringify(body));

/** Answer with the stream of a run that has so many events. */
function answered(count) {
  const frames = Array.from({ length: count }, (_, index) => {
    const isLast = index + 1 === count;
    const event = isLast ? { category: "lifecycle", action: "completed" } : { category: "llm", action: "stream" };
    const data = { run_id: words.get("run"), sequence: index + 1, event, data: { content: "a" } };
    return `id: ${index}\ndata: ${JSON.stringify(data)}\n\n`;
  });
  return new Response(frames.join(""), { headers: { "content-type": "text/event-stream" } });
}

function Request({ id }) {
  return (
    <Approval id={id}>
      {({ approval, decide, isDeciding, error }) => (
        <>
          <pre>{approval && approval.items.map((item) => `${item.tool} ${JSON.stringify(item.args)}`).join()}</pre>
          <button disabled={approval?.status !== "pending" || isDeciding} onClick={() => decide(true, "seen")}>
            Approve
          </button>
          {error && <p role="alert">{error.message}</p>}
        </>
      )}
    </Approval>
  );
}

function Page({ runId }) {
  const { status, text, approvalId, result, error, events } = useRun(runId);
  const { approvals } = useApprovals({ run_id: runId });
  const open = approvals?.length ?? null;
  useEffect(() => {
    if (count) {
      if (status === "completed") report({ count: events.length, ms: performance.now() });
      return;
    }
    const sequences = events.map((event) => event.sequence);
    report({ status, text, result, error: error?.message ?? null, sequences, open });
    if (status === "paused" && !sessionStorage.getItem("loaded")) {
      sessionStorage.setItem("loaded", "yes");
      location.reload();
    }
  }, [status, text, result, error, events, open]);
  return (
    <>
      <p>{text}</p>
      <p>{status}</p>
      {approvalId && <Request id={approvalId} />}
    </>
  );
}

createRoot(document.getElementById("root")).render(
  <StrictMode>
    <PenstockProvider client={client}>
      <Page runId={words.get("run")} />
    </PenstockProvider>
  </StrictMode>,
);

// The person at the page: presses the button when it can be pressed.
setInterval(() => {
  const button = document.querySelector("button:not(:disabled)");
  if (button !== null && sessionStorage.getItem("loaded")) {
    report({ shown: document.querySelector("pre").textContent });
    button.click();
  }
}, 50);

// A trial: starts a run, shows its stream, and asks for the decision for which the run waits. The
// user can leave the stream, come back to it, and cancel the run. A trial without a message starts
// no run; it shows the runs of `show`.

import { get, post } from "./api.js";
import { ask } from "./approval.js";
import { call, make, put, short } from "./text.js";

const ENDS = new Set(["lifecycle.completed", "lifecycle.failed", "lifecycle.cancelled"]);
const MOST_LINES = 500;
const DELIVERIES_MS = 5000; // after the end, what automations send is given this time to arrive

// Maps an event type to a function that returns the class and the text of its line in the log. The
// log does not show events of other types, except those in PIECES.
const LINES = {
  "lifecycle.started": (data) => ["dim", `▶ ${data.agent}`],
  "lifecycle.resumed": () => ["dim", "▶ resumed"],
  "llm.tool_call": (data) => [
    "tool",
    `→ ${call(data.tool, data.args)}${data.pending ? " (waits for an approval)" : ""}`,
  ],
  "llm.tool_result": (data) => ["tool", `← ${data.tool}: ${short(data.error ?? data.result)}`],
  "dispatch.team": (data) => ["tool", `⇒ ${data.team_name}: ${short(data.task)}`],
  "dispatch.worker": (data) => ["tool", `⇒ ${data.worker_name}: ${short(data.task)}`],
  "lifecycle.retrying": (data) => ["dim", `${data.step ?? "it"} is tried again: ${data.reason}`],
  "approval.requested": () => ["dim", "? a person decides, below"],
  "approval.decided": (data) => ["dim", `${data.outcome} by ${data.by}`],
  "approval.escalated": () => ["dim", "further people may decide now"],
  "approval.expired": () => ["dim", "nobody decided in time"],
  "approval.withdrawn": () => ["dim", "the decision is not needed any more"],
  "system.warning": (data) => ["dim", `! ${data.message ?? data.code ?? ""}`],
  "lifecycle.completed": () => ["dim", "completed"],
  "lifecycle.cancelled": () => ["dim", "cancelled"],
  "lifecycle.failed": (data) => ["bad", `failed (${data.code}): ${data.error}`],
};
const PIECES = {
  "llm.stream": (data) => ["", data.message_id, data.content],
  "llm.reasoning": (data) => ["dim", data.reasoning_id, data.thought],
};

/**
 * Make a trial. It calls `changed` whenever the lists of runs or approvals may have changed; at the
 * end of a run with the run's id and how it ended.
 */
export function trial({ title, about, message, leaves }, changed) {
  const card = document.getElementById("trial").content.firstElementChild.cloneNode(true);
  const part = (selector) => card.querySelector(selector);
  const [form, log, asked, state] = ["form", ".log", ".asked", ".state"].map(part);
  const [leave, back, cancel] = [".leave", ".back", ".cancel"].map(part);
  part("h3").textContent = title;
  part(".about").textContent = about;
  part("input").value = message;
  if (message === undefined) form.remove();
  log.setAttribute("aria-label", `${title}: the run's stream`);
  if (!leaves) {
    leave.remove();
    back.remove();
  }

  let runId = null;
  let source = null;
  let cursor = null;
  let last = 0; // the sequence of the last event
  let ended = true;
  let speaking = null; // [id, paragraph] of the text to which the next piece may be added
  let settle = null;
  let shown = null; // the id of the run that `show` was last called with

  const say = (text) => {
    state.replaceChildren();
    put(state, text);
  };
  const line = (className, text) => {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    const element = make("p", className, text);
    log.append(element);
    while (log.children.length > MOST_LINES) log.firstElementChild.remove();
    if (atEnd) log.scrollTop = log.scrollHeight;
    return element;
  };
  const buttons = () => {
    form.querySelector("button").disabled = !ended;
    cancel.disabled = ended;
    leave.disabled = ended || source === null;
    back.disabled = runId === null || source !== null || ended;
  };
  const close = () => {
    source?.close();
    source = null;
  };

  // Automations act on the end of a run, when its stream is closed.
  const nameUndelivered = async (id) => {
    await new Promise((resolve) => setTimeout(resolve, DELIVERIES_MS));
    const run = await get(`/v1/runs/${encodeURIComponent(id)}`).catch(() => null);
    if (runId !== id) return;
    for (const each of run?.deliveries ?? []) {
      if (each.status === "delivered") continue;
      line("bad", `automation ${each.automation}: ${each.status} ${each.result ?? ""}`);
    }
  };

  const take = (message) => {
    const event = JSON.parse(message.data);
    cursor = message.lastEventId;
    last = event.sequence;
    const type = `${event.event.category}.${event.event.action}`;
    const data = event.data;
    if (type in PIECES) {
      const [className, id, text] = PIECES[type](data);
      if (speaking?.[0] !== id) speaking = [id, line(className, "")];
      put(speaking[1], text);
      log.scrollTop = log.scrollHeight;
    } else if (type in LINES) {
      speaking = null;
      line(...LINES[type](data));
    }
    if (type === "approval.requested") {
      asked.hidden = false;
      asked.scrollTop = 0;
      settle = ask(asked, data);
      changed();
    } else if (type === "approval.escalated") {
      changed();
    } else if (type.startsWith("approval.")) {
      settle?.(type === "approval.decided" ? `${data.outcome} by ${data.by}` : LINES[type]()[1]);
      changed();
    }
    say(`event ${last}${type === "lifecycle.paused" ? ", waits for a person" : ""}`);
    if (ENDS.has(type)) {
      ended = true;
      close();
      say(`${event.event.action} with event ${last}`);
      settle?.("the run has ended");
      changed(runId, event.event.action);
      nameUndelivered(runId);
    }
    buttons();
  };

  const follow = () => {
    const after = cursor === null ? "" : `&after=${encodeURIComponent(cursor)}`;
    const opened = new EventSource(
      `/v1/runs/${encodeURIComponent(runId)}/events?names=off&include=children${after}`,
    );
    source = opened;
    opened.onmessage = (message) => source === opened && take(message);
    opened.onerror = () => {
      if (source !== opened) return;
      if (opened.readyState === EventSource.CLOSED) {
        close();
        say(`the stream was refused after event ${last}; come back, or choose the run in the list`);
        ended = !leaves; // without a button to come back, the user can start another run
      } else {
        say(`connection lost after event ${last}; the browser comes back by itself`);
      }
      buttons();
    };
    buttons();
  };

  const begin = (text) => {
    close();
    log.replaceChildren();
    asked.hidden = true;
    asked.replaceChildren();
    [runId, cursor, last, speaking, settle, ended] = [null, null, 0, null, null, false];
    buttons();
    cancel.disabled = true;
    say(text);
  };

  form.addEventListener("submit", async (submitted) => {
    submitted.preventDefault();
    begin("starting…");
    try {
      const run = await post("/v1/runs", {
        agent: form.querySelector("select").value,
        message: form.querySelector("input").value,
      });
      runId = run.run_id;
      follow();
    } catch (error) {
      ended = true;
      say(error.message);
      buttons();
    }
    changed();
  });
  leave.addEventListener("click", () => {
    close();
    line("dim", `you left after event ${last}; the run goes on`);
    say(`left after event ${last}`);
    speaking = null;
    buttons();
    back.focus();
  });
  back.addEventListener("click", () => {
    line("dim", `you are back, from event ${last + 1} on`);
    follow();
    leave.focus();
  });
  cancel.addEventListener("click", async () => {
    cancel.disabled = true;
    try {
      await post(`/v1/runs/${encodeURIComponent(runId)}/cancel`, {});
      if (source === null && !ended) follow(); // so that the log shows the end of the run
    } catch (error) {
      say(error.message);
      buttons();
    }
    changed();
  });

  return {
    card,
    close,
    /** Show a run that has begun already: all its events, and those to come. */
    async show(id) {
      shown = id;
      begin("loading…");
      part("h3").replaceChildren();
      try {
        const run = await get(`/v1/runs/${encodeURIComponent(id)}`);
        if (shown !== id) return;
        put(part("h3"), short(run.message, 60) || id);
        runId = id;
        follow();
      } catch (error) {
        if (shown !== id) return;
        ended = true;
        say(error.message);
        buttons();
      }
    },
    /** Offer these agents. The chosen agent stays chosen if it is still offered. */
    offer(agents) {
      const select = form.querySelector("select");
      const chosen = select.value;
      const ids = agents.map((agent) => agent.id);
      if ([...select.options].map((option) => option.value).join() === ids.join()) return;
      select.replaceChildren(
        ...agents.map((agent) => {
          const option = make("option", "", agent.name);
          option.value = agent.id;
          return option;
        }),
      );
      if (ids.includes(chosen)) select.value = chosen;
    },
  };
}

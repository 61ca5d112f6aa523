// The first page: the agents, the recent runs and approvals, three trials, and the sign-in.

import { get, signIn, signOut } from "./api.js";
import { ask } from "./approval.js";
import { make, put, short } from "./text.js";
import { trial } from "./trial.js";

const LOOK_AGAIN_MS = 5000;
const AFTER_A_CHANGE_MS = 400;
const SHOWN_RUNS = 8;
const SHOWN_FAILURES_MS = 24 * 3600 * 1000; // a failed delivery is shown for a day
const TRIALS = [
  {
    title: "A streamed run",
    about: "The answer as it comes, with a tool call on the way.",
    message: "What is the weather in Paris?",
  },
  {
    title: "A run that asks you first",
    about: "The tool does not run before you approve it, with exactly these arguments.",
    message: "Please delete report.txt",
  },
  {
    title: "A stream to come back to",
    about: "Leave in the middle: the run goes on. Come back: nothing is missing. Or cancel it.",
    message: "Tell me a slow story",
    leaves: true,
  },
];

const byId = (id) => document.getElementById(id);
const ends = new Map(); // run id to how it ended: the run's stream says so before the list does
const panels = new Map(); // approval id to {box, settle}

function say(text) {
  const notice = byId("notice");
  notice.hidden = !text;
  notice.replaceChildren();
  put(notice, text);
}

function stateOf({ answers, starting }) {
  if (answers) return ["good", "answers"];
  return starting ? ["quiet-text", "is being set up"] : ["bad", "does not answer"];
}

function showAgents(agents) {
  byId("agents").replaceChildren(
    ...agents.map((agent) => {
      const row = make("li");
      row.append(
        make("strong", "", agent.name),
        make("span", "tag", agent.protocol),
        make("span", ...stateOf(agent)),
      );
      return row;
    }),
  );
  if (!agents.length) byId("agents").append(make("li", "quiet-text", "None is configured."));
  for (const each of trials) each.offer(agents);
}

function showRuns(runs) {
  byId("no-runs").hidden = runs.length > 0;
  byId("runs").replaceChildren(
    ...runs.map((run) => {
      const row = make("li");
      const link = make("a", "", short(run.message, 60) || run.run_id);
      link.href = `#${run.run_id}`;
      const status = ends.get(run.run_id) ?? run.status;
      row.append(link, make("span", "tag", run.agent), make("span", status, status));
      return row;
    }),
  );
}

// Show the run that the address names after `#`.
function showChosen() {
  const id = location.hash.slice(1);
  chosen.card.hidden = !id;
  if (id) chosen.show(id);
  else chosen.close();
}

function showApprovals(approvals) {
  const pending = new Set(approvals.map((approval) => approval.approval_id));
  for (const approval of approvals) {
    if (panels.has(approval.approval_id)) continue;
    const box = make("div", "panel asked");
    const settle = ask(box, approval);
    box.prepend(make("p", "quiet-text", `${approval.agent} for ${approval.user_id}`));
    byId("approvals").append(box);
    panels.set(approval.approval_id, { box, settle });
  }
  // A decided approval leaves the list only while nobody points at the list. The approvals below it
  // move up, and a click could hit another one.
  const isUsed = byId("approvals").matches(":hover, :focus-within");
  for (const [id, { box, settle }] of panels) {
    if (pending.has(id)) continue;
    settle("it does not wait any more");
    if (isUsed) continue;
    box.remove();
    panels.delete(id);
  }
  byId("no-approvals").hidden = panels.size > 0;
}

// Show the rules with an attempt that failed and that was not made good. A caller who may not
// automate is not asked again.
async function lookAtAutomations() {
  if (!automates) return;
  try {
    const { automations } = await get("/v1/automations?limit=1000");
    if (!automations.length) return showAutomations([]);
    const ids = new Set(automations.map((rule) => rule.id));
    const since = new Date(Date.now() - SHOWN_FAILURES_MS).toISOString();
    const list = (query) => get(`/v1/automations/deliveries?limit=100&status=${query}`);
    const pages = await Promise.all([list("waiting"), list(`failed&since=${since}`)]);
    const found = pages.flatMap((page) => page.deliveries);
    showAutomations(found.filter(({ rule }) => ids.has(rule))); // not those of deleted rules
  } catch (error) {
    automates = ![403, 404].includes(error.status);
  }
}

function showAutomations(deliveries) {
  const rules = new Map();
  for (const { rule, status, last } of deliveries) {
    const found = rules.get(rule) ?? { waiting: 0, failed: 0, last: null };
    found[status] += 1;
    if (last?.code && !(found.last?.at > last.at)) found.last = last;
    rules.set(rule, found);
  }
  const failing = [...rules].filter(([, found]) => found.last);
  byId("automations").hidden = !failing.length;
  byId("automations").querySelector("ul").replaceChildren(
    ...failing.map(([rule, { waiting, failed, last }]) => {
      const row = make("li");
      row.append(
        make("strong", "", rule),
        make("span", "bad", `${waiting} waiting, ${failed} failed; the latest: ${short(last.text)}`),
      );
      return row;
    }),
  );
}

function askWho(needed) {
  const form = byId("sign-in");
  if (needed && form.hidden) {
    form.hidden = false;
    byId("token").focus();
  } else if (!needed) {
    form.hidden = true;
  }
  document.querySelector("main").inert = needed;
}

async function part(path, show) {
  try {
    show(await get(path));
    return null;
  } catch (error) {
    return error;
  }
}

let looking = null;
let again = null;
let automates = true;
let lookingAtAutomations = null;

async function look() {
  clearTimeout(again);
  // not awaited: a service of automations that is slow does not stop the other lists
  lookingAtAutomations ??= lookAtAutomations().finally(() => {
    lookingAtAutomations = null;
  });
  looking ??= Promise.all([
    part("/v1/agents", (body) => showAgents(body.agents)),
    part(`/v1/runs?parent_run_id=&limit=${SHOWN_RUNS}`, (body) => showRuns(body.runs)),
    part("/v1/approvals?status=pending", (body) => showApprovals(body.approvals)),
  ]).finally(() => {
    looking = null;
  });
  const errors = (await looking).filter((error) => error !== null);
  const unknown = errors.some((error) => error.status === 401);
  askWho(unknown);
  say(unknown || !errors.length ? "" : [...new Set(errors.map((e) => e.message))].join(" "));
  clearTimeout(again);
  if (!unknown) again = setTimeout(lookIfSeen, LOOK_AGAIN_MS);
  return !unknown;
}

function lookIfSeen() {
  if (document.hidden) again = setTimeout(lookIfSeen, LOOK_AGAIN_MS);
  else look();
}

function changed(endedRun, status) {
  if (endedRun) ends.set(endedRun, status);
  clearTimeout(again);
  again = setTimeout(look, AFTER_A_CHANGE_MS);
}

const trials = TRIALS.map((each) => trial(each, changed));
byId("try").append(...trials.map((each) => each.card));
const chosen = trial({ title: "", about: "" }, changed);
chosen.card.hidden = true;
byId("no-runs").before(chosen.card);
addEventListener("hashchange", showChosen);

byId("sign-in").addEventListener("submit", async (submitted) => {
  submitted.preventDefault();
  const outcome = byId("sign-in").querySelector(".outcome");
  outcome.replaceChildren();
  const token = byId("token").value.trim();
  byId("token").value = "";
  try {
    const who = await signIn(token);
    if (await look()) {
      if (location.hash) showChosen();
      byId("who").hidden = false;
      put(byId("who").querySelector("span"), `Signed in as ${who.user_id}`);
    } else {
      put(
        outcome,
        "The token holds, but the browser has not kept the cookie: it needs HTTPS, or " +
          "PENSTOCK_AUTH_COOKIE_SECURE=false on the server.",
      );
    }
  } catch (error) {
    put(outcome, error.message);
  }
});
byId("who").querySelector("button").addEventListener("click", async () => {
  await signOut();
  location.reload(); // so that no data of the user stays on the page
});

if ((await look()) && location.hash) showChosen();

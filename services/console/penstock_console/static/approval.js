// Shows an approval that waits for a person: the tool calls, their arguments as text, and two
// buttons.

import { post } from "./api.js";
import { make, put } from "./text.js";

const STRICT = { strict: true };

function args(item) {
  const list = make("dl", "args");
  const entries = Object.entries(item.args ?? {});
  for (const [key, value] of entries) {
    list.append(make("dt", "", key, STRICT));
    // JSON shows the quotes and the line ends of a string.
    list.append(make("dd", "", JSON.stringify(value, null, 2), STRICT));
  }
  if (!entries.length) list.append(make("dd", "", "no arguments"));
  return list;
}

function shown(item) {
  const block = make("div", "item");
  block.append(make("p", "tool", item.tool ?? item.kind, STRICT), args(item));
  if (item.description) block.append(make("p", "said", item.description, STRICT));
  return block;
}

/**
 * Fill `box` with an approval in the form of `approval.requested` or of GET /v1/approvals.
 * Return `settle(text)`, which removes the buttons and shows the outcome `text`.
 * The decision has the digest of the approval. So if the approval has changed since it was shown,
 * the approvals service refuses the decision.
 */
export function ask(box, approval) {
  const outcome = make("p", "outcome");
  outcome.setAttribute("role", "status");
  const buttons = make("p", "row decide");
  const foot = make("div", "foot");
  foot.append(outcome, buttons);
  let settled = false;

  const settle = (text) => {
    if (settled) return;
    settled = true;
    buttons.remove();
    outcome.replaceChildren();
    put(outcome, text);
    box.classList.add("settled");
  };

  const decide = async (decision) => {
    for (const button of buttons.children) button.disabled = true;
    outcome.replaceChildren();
    try {
      const taken = await post(
        `/v1/approvals/${encodeURIComponent(approval.approval_id)}/decision`,
        {
          items: approval.items.map((item) => ({ item_id: item.item_id, decision })),
          digest: approval.digest,
        },
      );
      settle(`${taken.decision?.outcome ?? decision} by ${taken.decision?.by ?? "you"}`);
    } catch (error) {
      put(outcome, error.message);
      for (const button of buttons.children) button.disabled = false;
    }
  };

  const confirms = approval.items.every((item) => item.kind === "confirmation");
  for (const [decision, label] of [["approve", "Approve"], ["reject", "Reject"]]) {
    if (decision === "approve" && !confirms) continue;
    const button = make("button", decision, label);
    button.type = "button";
    button.addEventListener("click", () => decide(decision));
    buttons.append(button);
  }
  box.classList.remove("settled");
  box.replaceChildren(...approval.items.map(shown));
  if (!confirms) {
    box.append(make("p", "said", "It needs an answer, which this page cannot give: use "));
    box.lastChild.append(make("code", "", `penstock approvals approve ${approval.approval_id}`));
  }
  // The foot stays in view below long arguments, which scroll.
  box.append(foot);
  return settle;
}

// @ts-check
// The panel of one step of a workflow's run.

import { runPlace } from "./place.js";
import { Component, Status, Tree, duration, html } from "./view.js";

/** One attempt, or one item of a loop, of a step. */
function Part({ item, name }) {
  const took = item.until ? duration(Date.parse(item.until) - Date.parse(item.at)) : "";
  return html`<li>
    <p><strong>${name}</strong> <${Status} status=${item.state} /> <span class="dim">${took}</span>
      ${item.child && html` <a href=${runPlace(item.child)}>its run</a>`}
      ${item.takenFrom && html` <a class="taken" href=${runPlace(item.takenFrom.child_run_id ?? item.takenFrom.run_id)}>taken over</a>`}</p>
    ${item.task && html`<details><summary>Task</summary><p class="text">${item.task}</p></details>`}
    ${item.error && html`<p class="bad">${item.error}</p>`}
    ${item.output !== undefined && item.output !== null && html`<details open><summary>Output</summary><${Tree} value=${item.output} /></details>`}
  </li>`;
}

/** The panel: what the definition says, and each attempt and item. `onFork` forks before the step. */
export class StepPanel extends Component {
  render({ id, step, parts, onFork, onClose }) {
    const attempts = parts.filter((each) => !each.loop);
    const items = parts.filter((each) => each.loop);
    const first = parts[0];
    return html`<section class="card step-panel" aria-label=${`Step ${id}`} onKeyDown=${(event) => event.key === "Escape" && onClose()}>
      <div class="bar">
        <h2 tabindex="-1">${id}</h2>
        ${first && onFork && html`<button type="button" class="quiet small fork-before" onClick=${() => onFork(first)}>Fork before this step…</button>`}
        <button type="button" class="quiet small" onClick=${onClose}>Close</button>
      </div>
      ${!parts.length && html`<p class="dim">It has not begun.</p>`}
      <ol class="parts">
        ${attempts.map((item) => html`<${Part} key=${item.key} item=${item} name=${item.attempt > 1 ? `Attempt ${item.attempt}` : "Attempt 1"} />`)}
        ${items.map((item) => html`<${Part} key=${item.key} item=${item} name=${`Item ${item.step.split(".").at(-1)}`} />`)}
      </ol>
      <details><summary>Definition</summary><${Tree} value=${step} /></details>
    </section>`;
  }
}

// @ts-check
// A workflow's steps as a graph: each step stands to the right of the steps that it needs.

import { Status, duration, html } from "./view.js";

const NODE = { width: 190, height: 52 };
const GAP = { x: 56, y: 18 };

/** Return the place of each step, the lines between them, and the size of the whole. */
export function layout(steps) {
  const columns = new Map();
  const column = (id, path = []) => {
    if (columns.has(id)) return columns.get(id);
    const needs = (steps[id].needs ?? []).filter((each) => each in steps && !path.includes(each));
    const found = needs.length ? 1 + Math.max(...needs.map((each) => column(each, [...path, id]))) : 0;
    columns.set(id, found);
    return found;
  };
  const used = [];
  const nodes = Object.keys(steps).map((id) => {
    const at = column(id);
    used[at] = (used[at] ?? 0) + 1;
    return { id, x: at * (NODE.width + GAP.x), y: (used[at] - 1) * (NODE.height + GAP.y) };
  });
  const rows = Math.max(...used);
  for (const node of nodes) {
    // A column with fewer steps stands in the middle.
    node.y += ((rows - used[column(node.id)]) * (NODE.height + GAP.y)) / 2;
  }
  const places = new Map(nodes.map((each) => [each.id, each]));
  const lines = nodes.flatMap(({ id }) =>
    (steps[id].needs ?? []).flatMap((from) => (places.has(from) ? [[places.get(from), places.get(id)]] : [])),
  );
  return {
    nodes,
    lines,
    width: used.length * (NODE.width + GAP.x) - GAP.x,
    height: rows * (NODE.height + GAP.y) - GAP.y,
  };
}

/**
 * The graph. `states` has each step that has begun by its id, as `steps` of a transcript has it. `onChoose` gets the id of a step that is clicked.
 */
export function Graph({ steps, states = new Map(), chosen = null, onChoose = null }) {
  if (!Object.keys(steps).length) return null;
  const { nodes, lines, width, height } = layout(steps);
  const curve = ([from, to]) => {
    const [x1, y1] = [from.x + NODE.width, from.y + NODE.height / 2];
    const [x2, y2] = [to.x, to.y + NODE.height / 2];
    return `M${x1} ${y1} C${x1 + GAP.x / 2} ${y1}, ${x2 - GAP.x / 2} ${y2}, ${x2} ${y2}`;
  };
  return html`<div class="graph" role="region" aria-label="The steps" tabindex="0">
    <div class="plane" style=${`width:${width}px;height:${height}px`}>
      <svg width=${width} height=${height} aria-hidden="true">${lines.map((each) => html`<path d=${curve(each)} />`)}</svg>
      <ol>
        ${nodes.map(({ id, x, y }) => {
          const { state, attempt, items, at, until } = states.get(id) ?? {};
          const counts = items?.size ? `, ${[...items.values()].filter((each) => each.until).length} of ${items.size} items` : "";
          const took = at && until ? `, ${duration(Date.parse(until) - Date.parse(at))}` : "";
          return html`<li key=${id} class=${`node is-${state ?? "waiting"}`} data-step=${id}
            style=${`left:${x}px;top:${y}px;width:${NODE.width}px;height:${NODE.height}px`}>
            ${onChoose ? html`<button type="button" class="plain" aria-pressed=${chosen === id} onClick=${() => onChoose(id)}><strong>${id}</strong></button>` : html`<strong>${id}</strong>`}
            ${state ? html`<${Status} status=${state} more=${`${took}${attempt > 1 ? `, attempt ${attempt}` : ""}${counts}`} />` : html`<span class="status is-waiting">${kindOf(steps[id])}</span>`}
          </li>`;
        })}
      </ol>
    </div>
  </div>`;
}

const KINDS = ["run", "approve", "call", "for_each", "workflow", "listen", "wait", "set"];

function kindOf(step) {
  if (step.run?.agent) return step.run.agent;
  return KINDS.find((each) => each in step) ?? "step";
}

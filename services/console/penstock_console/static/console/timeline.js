// @ts-check
// The timeline of a run: a lane for each source, with a bar for each thing that took time.

import { lanes } from "./lanes.js";
import { duration, html, named } from "./view.js";

const MOST_BARS = 3000; // further ones would make the page slow; the list of events has all

const percent = (part) => `${(part * 100).toFixed(3)}%`;

function words({ label, state, took, count }) {
  const about = count > 1 ? `${count} times` : label === state ? label : `${label}, ${state}`;
  return `${about}, ${duration(took)}`;
}

/** The lanes of these items; `onChoose` gets the item of a bar that is clicked. */
export function Timeline({ items, now, onChoose }) {
  const { lanes: all, breaks } = lanes(items, now);
  if (!all.length) return html`<p class="dim">Nothing has happened yet.</p>`;
  let room = MOST_BARS;
  const shown = (row) => {
    const some = row.slice(0, Math.max(0, room));
    room -= some.length;
    return some;
  };
  return html`<div class="timeline" role="region" aria-label="Timeline">
    <ol>
      ${all.map(({ kind, name, rows }) => html`<li key=${`${kind} ${name}`} class=${`lane of-${kind}`}>
        <p class="lane-name"><span class="dim">${kind}</span> ${name}</p>
        <div class="track">
          ${breaks.map(({ at, ms }) => html`<span class="break" style=${`left:${percent(at)}`} title=${`${duration(ms)} without a change`}></span>`)}
          ${rows.map((row) => html`<ol class="bars">
            ${shown(row).map((bar) => html`<li key=${bar.item.key} style=${`left:${percent(bar.from)};width:${percent(bar.to - bar.from)}`}>
              <button type="button" class=${`bar-of is-${bar.state}`} title=${named(words(bar))} aria-label=${words(bar)} onClick=${() => onChoose(bar.item)}></button>
            </li>`)}
          </ol>`)}
        </div>
      </li>`)}
    </ol>
    ${breaks.length > 0 && html`<p class="dim">${breaks.length === 1 ? "One pause is" : `${breaks.length} pauses are`} shortened, together ${duration(breaks.reduce((sum, { ms }) => sum + ms, 0))}.</p>`}
    ${room <= 0 && html`<p class="notice">The timeline shows the first ${MOST_BARS.toLocaleString()} bars.</p>`}
  </div>`;
}

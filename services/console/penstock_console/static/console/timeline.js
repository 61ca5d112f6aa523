// @ts-check
// The timeline of a run: a lane for each source, with a bar for each thing that took time.

import { lanes } from "./lanes.js";
import { Component, duration, html } from "./view.js";

const MOST_BARS = 3000; // further ones would make the page slow; the list of events has all
const SHARE = 10; // a drawing is followed by so many times its time without one

const percent = (part) => `${(part * 100).toFixed(3)}%`;

function words({ kind, name }, { label, state, took, count, from, to }, breaks) {
  const about = count > 1 ? `${count} times` : label === state ? label : `${label}, ${state}`;
  const paused = breaks.filter(({ at }) => from < at && at < to).reduce((sum, { ms }) => sum + ms, 0);
  return `${kind} ${name}: ${about}, ${duration(took)}${paused && count === 1 ? `, of which ${duration(paused)} are drawn short` : ""}`;
}

/** What a bar is, for a reader who points at it or has reached it by the keys. */
class Words extends Component {
  render(_, { text }) {
    return html`<p class="dim bar-words" aria-hidden="true">${text ?? ""}</p>`;
  }
}

/** The lanes of these items; `onChoose` gets the item of a bar that is clicked. */
export class Timeline extends Component {
  /** A run may have very many items, and new ones in each frame: most of the time is left for others. */
  shouldComponentUpdate() {
    const wait = SHARE * this.took - (performance.now() - this.drawnAt);
    if (wait <= 0) return true;
    this.timer ??= setTimeout(() => this.forceUpdate(), wait);
    return false;
  }

  componentWillUpdate() {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.begunAt = performance.now();
  }

  componentWillUnmount() {
    clearTimeout(this.timer);
  }

  componentDidMount() {
    Object.assign(this, { drawnAt: performance.now(), took: 0 });
  }

  componentDidUpdate() {
    this.drawnAt = performance.now();
    this.took = this.drawnAt - this.begunAt;
    // The bar that Tab leads to may be gone, because the run is watched again.
    if (this.box && !this.box.querySelector(".bar-of[tabindex='0']")) this.box.querySelector(".bar-of")?.setAttribute("tabindex", "0");
  }

  /** Only one bar can be reached by Tab; from there, keys lead to the others. */
  press(event) {
    const bars = [...this.box.querySelectorAll(".bar-of")];
    const rows = [...this.box.querySelectorAll(".lane")];
    const [bar, lane] = [bars.indexOf(event.target), rows.indexOf(event.target.closest(".lane"))];
    if (bar < 0) return;
    const first = (index) => rows[Math.max(0, Math.min(rows.length - 1, index))].querySelector(".bar-of");
    const next = {
      ArrowRight: () => bars[bar + 1],
      ArrowLeft: () => bars[bar - 1],
      ArrowDown: () => first(lane + 1),
      ArrowUp: () => first(lane - 1),
      Home: () => bars[0],
      End: () => bars.at(-1),
    }[event.key]?.();
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  render({ items, now, onChoose }) {
    const { lanes: all, breaks } = lanes(items, now);
    if (!all.length) return html`<p class="dim">Nothing has happened yet.</p>`;
    let room = MOST_BARS;
    const shown = (row) => {
      const some = row.slice(0, Math.max(0, room));
      room -= some.length;
      return some;
    };
    const first = all[0].rows[0][0];
    const say = (lane, bar) => () => this.words.setState({ text: words(lane, bar, breaks) });
    return html`<div class="timeline" role="region" aria-label="Timeline" ref=${(box) => (this.box = box)} onKeyDown=${(event) => this.press(event)}>
      <${Words} ref=${(found) => (this.words = found)} />
      <ol>
        ${all.map((lane) => html`<li key=${`${lane.kind} ${lane.name}`} class=${`lane of-${lane.kind}`}>
          <p class="lane-name"><span class="dim">${lane.kind}</span> ${lane.name}</p>
          <div class="track">
            ${breaks.map(({ at, ms }) => html`<span class="break" style=${`left:${percent(at)}`} title=${`${duration(ms)} without a change`}></span>`)}
            ${lane.rows.map((row) => html`<ol class="bars">
              ${shown(row).map((bar) => html`<li key=${bar.item.key} style=${`left:${percent(bar.from)};width:${percent(bar.to - bar.from)}`}>
                <button type="button" class=${`bar-of is-${bar.state}`} tabindex=${bar === first ? 0 : -1} aria-label=${words(lane, bar, breaks)}
                  onFocus=${say(lane, bar)} onMouseEnter=${say(lane, bar)} onClick=${() => onChoose(bar.item)}></button>
              </li>`)}
            </ol>`)}
          </div>
        </li>`)}
      </ol>
      ${breaks.length > 0 && html`<p class="dim">${breaks.length === 1 ? "One pause is" : `${breaks.length} pauses are`} shortened, together ${duration(breaks.reduce((sum, { ms }) => sum + ms, 0))}.</p>`}
      ${room <= 0 && html`<p class="notice">The timeline shows the first ${MOST_BARS.toLocaleString()} bars.</p>`}
    </div>`;
  }
}

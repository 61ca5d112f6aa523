// @ts-check
// The list of a run's events. Only the rows in view are in the page, so it may have 100,000.

import { lineOf } from "./fold.js";
import { Component, Tree, Time, html } from "./view.js";

const ROW_PX = 30;
const SPARE = 8; // rows above and below the view

export class EventList extends Component {
  constructor() {
    super();
    this.state = { top: 0, height: 600, words: "", chosen: null };
  }

  componentDidMount() {
    this.watcher = new ResizeObserver(() => this.setState({ height: this.box.clientHeight }));
    this.watcher.observe(this.box);
  }

  componentWillUnmount() {
    this.watcher.disconnect();
  }

  /** The events that contain the words; all events while there are none. */
  found() {
    const { events } = this.props;
    const words = this.state.words.toLowerCase();
    if (!words) return events;
    if (this.cache?.words !== words) this.cache = { words, upTo: 0, found: [] };
    for (const each of events.slice(this.cache.upTo)) {
      if (each.raw.toLowerCase().includes(words)) this.cache.found.push(each);
    }
    this.cache.upTo = events.length;
    return this.cache.found;
  }

  press(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
    if (!step) return;
    event.preventDefault();
    const found = this.found();
    const at = found.indexOf(this.state.chosen);
    const next = Math.max(0, Math.min(found.length - 1, at + step));
    this.setState({ chosen: found[next] });
    const top = next * ROW_PX;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + ROW_PX > this.box.scrollTop + this.box.clientHeight) {
      this.box.scrollTop = top + ROW_PX - this.box.clientHeight;
    }
  }

  render({ events, runId }, { top, height, words, chosen }) {
    const found = this.found();
    const first = Math.max(0, Math.floor(top / ROW_PX) - SPARE);
    const last = Math.min(found.length, Math.ceil((top + height) / ROW_PX) + SPARE);
    const counts = words ? `${found.length} of ${events.length}` : `${events.length}`;
    const event = chosen && JSON.parse(chosen.raw);
    return html`<div class="events">
      <div class="row">
        <label for="event-words">Find <input id="event-words" type="search" value=${words} placeholder="a type, a word"
          onInput=${(input) => this.setState({ words: input.target.value, top: 0 })} /></label>
        <span class="dim" role="status">${counts} events</span>
      </div>
      <div class="panes">
        <div class="list" role="listbox" tabindex="0" aria-label="Events" aria-activedescendant=${chosen ? `event-${chosen.position}` : undefined}
          ref=${(box) => (this.box = box)} onKeyDown=${(key) => this.press(key)}
          onScroll=${(scrolled) => this.setState({ top: scrolled.target.scrollTop })}>
          <div class="spacer" role="presentation" style=${`height:${found.length * ROW_PX}px`}>
            ${found.slice(first, last).map((each, index) => {
              const shown = JSON.parse(each.raw);
              return html`<div key=${each.position} id=${`event-${each.position}`} role="option" class="event"
                aria-selected=${each === chosen} style=${`top:${(first + index) * ROW_PX}px`}
                onClick=${() => this.setState({ chosen: each })}>
                <span class="sequence">${String(shown.sequence)}</span>
                <span class=${`type of-${shown.event.category}`}>${`${shown.event.category}.${shown.event.action}`}</span>
                <span class="line">${shown.run_id === runId ? "" : "↳ "}${lineOf(shown)}</span>
              </div>`;
            })}
          </div>
        </div>
        <div class="detail" tabindex="0" role="region" aria-label="The event">
          ${event
            ? html`<p class="dim">${`${event.event.category}.${event.event.action}`}, event ${String(event.sequence)}, <${Time} at=${event.timestamp} day=${true} /></p>
                <${Tree} value=${event} />`
            : html`<p class="dim">Choose an event to see all of it.</p>`}
        </div>
      </div>
    </div>`;
  }
}

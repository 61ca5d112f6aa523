// @ts-check
// The list of a run's events. Only the rows in view are in the page, so it may have 100,000.

import { lineOf } from "./fold.js";
import { Component, Tree, Time, html } from "./view.js";

const ROW_PX = 30;
const SPARE = 8; // rows above and below the view
const PAUSE_MS = 100; // where the list rests for so long, its events are read

const rows = new WeakMap();

/** Return what the row of an event shows. It is made once, because an event may have a megabyte. */
function rowOf(each, runId) {
  if (!rows.has(each)) {
    const event = JSON.parse(each.raw);
    const { category, action } = event.event;
    rows.set(each, {
      sequence: String(event.sequence),
      type: `${category}.${action}`,
      of: category,
      isOther: event.run_id !== runId,
      line: lineOf(event),
    });
  }
  return rows.get(each);
}

/** All of an event. It is drawn once, and not with each event that comes. */
class Detail extends Component {
  shouldComponentUpdate({ chosen }) {
    return chosen !== this.props.chosen;
  }

  render({ chosen }) {
    if (!chosen) return html`<p class="dim">Choose an event to see all of it.</p>`;
    const { event, sequence, timestamp, ...rest } = JSON.parse(chosen.raw);
    return html`<p class="dim">${`${event.category}.${event.action}`}, event ${String(sequence)}, <${Time} at=${timestamp} day=${true} /></p>
      <${Tree} value=${{ event, sequence, timestamp, ...rest }} />`;
  }
}

export class EventList extends Component {
  constructor() {
    super();
    this.state = { top: 0, height: 600, words: "", chosen: null };
  }

  componentDidMount() {
    this.watcher = new ResizeObserver(() => this.setState({ height: this.box.clientHeight }));
    this.watcher.observe(this.box);
  }

  componentDidUpdate() {
    if (this.state.words && !this.props.events.isWhole) this.props.onAll();
    clearTimeout(this.timer);
    if (this.state.words || this.state.error) return;
    const { all, gone } = this.props.events;
    const [first, last] = this.rows(all);
    const place = [Math.max(first, gone), last - 1].find((each) => each < last && each >= gone && !all[each]);
    if (place !== undefined) this.timer = setTimeout(() => this.read(place), PAUSE_MS);
  }

  componentWillUnmount() {
    this.watcher.disconnect();
    clearTimeout(this.timer);
  }

  /** Read the events around a place. */
  async read(place) {
    try {
      await this.props.events.read(place);
      this.setState({ error: null });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  /** The events that contain the words; all events while there are none. */
  found() {
    const { all, isWhole } = this.props.events;
    const words = this.state.words.toLowerCase();
    if (!words) return all;
    if (!isWhole) return [];
    if (this.cache?.words !== words) this.cache = { words, upTo: 0, found: [] };
    for (; this.cache.upTo < all.length; this.cache.upTo += 1) {
      const each = all[this.cache.upTo];
      if (each?.raw.toLowerCase().includes(words)) this.cache.found.push(each);
    }
    return this.cache.found;
  }

  /** The first row that is drawn, and the one after the last. */
  rows(found) {
    const { top, height } = this.state;
    return [Math.max(0, Math.floor(top / ROW_PX) - SPARE), Math.min(found.length, Math.ceil((top + height) / ROW_PX) + SPARE)];
  }

  async press(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    event.preventDefault();
    const found = this.found();
    const at = found.indexOf(this.state.chosen);
    const next = Math.max(0, Math.min(found.length - 1, at + step));
    if (!found[next]) await this.read(next);
    if (!found[next]) return;
    this.setState({ chosen: found[next] });
    const top = next * ROW_PX;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + ROW_PX > this.box.scrollTop + this.box.clientHeight) {
      this.box.scrollTop = top + ROW_PX - this.box.clientHeight;
    }
  }

  render({ events, runId }, { words, chosen, error = null }) {
    const found = this.found();
    const [first, last] = this.rows(found);
    const { count } = events;
    const isRead = !words || events.isWhole;
    const counts = !isRead ? `${count - events.first} of ${count} events are read for this` : `${words ? `${found.length} of ` : ""}${count} events`;
    return html`<div class="events">
      <div class="row">
        <label for="event-words">Find <input id="event-words" type="search" value=${words} placeholder="a type, a word"
          onInput=${(input) => this.setState({ words: input.target.value, top: 0 })} /></label>
        <span class="dim" role="status">${counts}</span>
      </div>
      ${error && html`<p class="notice" role="alert">${error} <button type="button" class="quiet small" onClick=${() => this.setState({ error: null })}>Try again</button></p>`}
      <div class="panes">
        <div class="list" role="listbox" tabindex="0" aria-label="Events" aria-activedescendant=${chosen ? `event-${chosen.position}` : undefined}
          ref=${(box) => (this.box = box)} onKeyDown=${(key) => this.press(key)}
          onScroll=${(scrolled) => this.setState({ top: scrolled.target.scrollTop })}>
          <div class="spacer" role="presentation" style=${`height:${found.length * ROW_PX}px`}>
            ${Array.from({ length: last - first }, (_, index) => {
              const each = found[first + index];
              const style = `top:${(first + index) * ROW_PX}px`;
              if (!each) return html`<div key=${first + index} class="event" role="presentation" style=${style}><span class="sequence">${String(first + index + 1)}</span> <span class="dim">${first + index < events.gone ? "no longer kept" : "…"}</span></div>`;
              const { sequence, type, of, isOther, line } = rowOf(each, runId);
              return html`<div key=${each.position} id=${`event-${each.position}`} role="option" class="event"
                aria-selected=${each === chosen} style=${style}
                onClick=${() => this.setState({ chosen: each })}>
                <span class="sequence">${sequence}</span>
                <span class=${`type of-${of}`}>${type}</span>
                <span class="line">${isOther ? "↳ " : ""}${line}</span>
              </div>`;
            })}
          </div>
        </div>
        <div class="detail" tabindex="0" role="region" aria-label="The event">
          <${Detail} chosen=${chosen} />
        </div>
      </div>
    </div>`;
  }
}

// @ts-check
// The events of a run. Of a run with very many, the page has the last ones, and reads earlier ones
// when they are wanted.

import { get } from "../api.js";

export const LAST = 1000; // so many of the last events are read when a run is opened
const PAGE = 1000;

/** @typedef {{raw: string, position: number, isBelow: boolean}} RunEvent */

export class RunEvents {
  constructor(path) {
    this.path = path;
    /** @type {(RunEvent | undefined)[]} */
    this.all = []; // in the order of the run; a place is empty while its event is not here
    this.first = 0; // from this place on, no event is missing
    this.gone = 0; // the events before this place are no longer kept
    this.notice = null; // the event that says so
    this.areRead = false; // whether all events are being read, or were
    this.pages = new Map(); // pages that are here or on their way, by their number
  }

  get count() {
    return this.all.length;
  }

  get isWhole() {
    return this.first <= this.gone;
  }

  /** Take the next event of the stream. Return whether it is the first, and earlier ones are missing. */
  push(raw, event) {
    const isLater = !this.all.length && event.sequence > 1;
    if (isLater) this.all.length = this.first = event.sequence - 1;
    this.all.push({ raw, position: this.all.length, isBelow: Boolean(event.subrun) });
    return isLater;
  }

  /** Read the page of a place, unless it is here. Throws Refused. */
  read(place) {
    const number = Math.floor(place / PAGE);
    if (!this.pages.has(number)) {
      const reading = this.fetch(number * PAGE, Math.min((number + 1) * PAGE, this.first));
      this.pages.set(number, reading);
      reading.catch(() => this.pages.delete(number));
    }
    return this.pages.get(number);
  }

  /** Read the page before the first event from which on none is missing. Throws Refused. */
  async readEarlier() {
    await this.read(this.first - 1);
    while (this.first > this.gone && this.all[this.first - 1]) this.first -= 1;
  }

  async fetch(begin, end) {
    for (let at = begin; at < end; ) {
      const { events } = await get(`${this.path}/events?from=${at + 1}&limit=${end - at}`);
      const stored = events.filter((each) => each.sequence);
      this.notice ??= events.find((each) => !each.sequence) ?? null;
      if (!stored.length) throw new Error("The events of this run are no longer kept.");
      if (stored[0].sequence > at + 1) this.gone = Math.max(this.gone, Math.min(stored[0].sequence - 1, end));
      for (const event of stored) {
        const position = event.sequence - 1;
        if (position < end) this.all[position] ??= { raw: JSON.stringify(event), position, isBelow: Boolean(event.subrun) };
      }
      at = stored.at(-1).sequence;
    }
    // Of a run whose content was erased meanwhile, the answer has other events.
    for (let place = Math.max(begin, this.gone); place < end; place += 1) {
      if (!this.all[place]) throw new Error("Events of this run are not there any more. Load the page again.");
    }
  }
}

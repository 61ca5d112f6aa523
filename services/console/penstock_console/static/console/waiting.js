// @ts-check
// How many requests wait for the person: in the title of the page, whatever screen it shows, and in
// the navigation.

import { get } from "../api.js";
import { named } from "./view.js";

const READ_MS = 30_000; // so late is seen what happens without the knowledge of this page
const PAUSE_MS = 300; // changes that come together are read once

/** The event on `window` after something that may have changed how many wait. */
const CHANGED = "penstock-waiting-changed";

let name = "Penstock";
let waiting = "";

function show() {
  document.title = `${waiting && `(${waiting}) `}${name}`;
}

/** Give the page a title. */
export function entitle(text) {
  name = `${named(text)} - Penstock`;
  show();
}

/** Say that a request has come, or was decided. */
export const reconsider = () => dispatchEvent(new Event(CHANGED));

/** From now on, tell `changed` how many requests wait, as a text that is empty for none. */
export function followWaiting(changed) {
  let timer = 0;
  const read = async () => {
    if (document.hidden) return;
    const found = await get("/v1/approvals/count?waits_for=me").catch(() => null); // it is read again
    const text = found?.count ? `${found.count}${found.complete ? "" : "+"}` : "";
    if (!found || text === waiting) return;
    waiting = text;
    show();
    changed(text);
  };
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(read, PAUSE_MS);
  };
  addEventListener(CHANGED, later);
  document.addEventListener("visibilitychange", later);
  setInterval(later, READ_MS);
  read();
}

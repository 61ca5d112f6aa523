// @ts-check
// The keys of the screens: those of one letter, which the reader may switch off, and a list of all.

import { Component, html } from "./view.js";

const OFF = "penstock-keys-off";
const EVERYWHERE = [["?", "this list"], ["Tab, Shift+Tab", "the next and the previous link, button or field"]];
const TABS = [["← →", "on the name of a view: the next or the previous view"]];
/** The keys of each screen, by its name. @type {Record<string, string[][]>} */
const KEYS = {
  Start: [["j, k", "the next or the previous of the latest runs"], ["Enter", "open it"]],
  Runs: [["/", "find a run by its message"], ["j, k", "the next or the previous run"], ["Enter", "open it"]],
  Run: [
    ...TABS,
    ["↑ ↓, Page Up, Page Down, Home, End", "in the list of events: another event"],
    ["← → ↑ ↓, Home, End", "in the timeline: another bar; Enter shows it in the transcript"],
    ["← →", "on the slider: the event before or after"],
    ["Esc", "close a form or the panel of a step"],
  ],
  Inbox: [["j, k", "the next or the previous request"], ["a, r", "go to Approve or Reject, which Enter then presses; before it, to what you have not seen"]],
};

const isOff = () => localStorage.getItem(OFF) !== null;

/**
 * Return the letter or sign that a key stands for. Return null in fields, with Ctrl, Alt or Meta,
 * and where the reader has switched such keys off.
 */
export function keyOf(event) {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return null;
  return event.key.length === 1 && !isOff() && !document.querySelector("dialog[open]") ? event.key : null;
}

/** The button that opens the list of keys of the screen with this name. */
export class Keys extends Component {
  componentDidMount() {
    this.pressed = (event) => keyOf(event) === "?" && this.open();
    addEventListener("keydown", this.pressed);
  }

  componentWillUnmount() {
    removeEventListener("keydown", this.pressed);
  }

  open() {
    this.setState({ isOff: isOff() }, () => this.box.showModal());
  }

  switch(isOn) {
    if (isOn) localStorage.removeItem(OFF);
    else localStorage.setItem(OFF, "");
    this.setState({ isOff: !isOn });
  }

  render({ screen }, { isOff: off }) {
    return html`<button type="button" class="quiet small" aria-haspopup="dialog" onClick=${() => this.open()}>Shortcuts</button>
      <dialog class="keys-list" aria-labelledby="keys-title" ref=${(box) => (this.box = box)}>
        <h2 id="keys-title">Keyboard shortcuts</h2>
        <dl>${[...(KEYS[screen] ?? []), ...EVERYWHERE].map(([keys, what]) => html`<div><dt>${keys.split(", ").map((each) => html`<kbd>${each}</kbd> `)}</dt><dd>${what}</dd></div>`)}</dl>
        <label for="keys-on"><input id="keys-on" type="checkbox" checked=${!off} onChange=${(event) => this.switch(event.target.checked)} /> Keys of one letter</label>
        <button type="button" onClick=${() => this.box.close()}>Close</button>
      </dialog>`;
  }
}

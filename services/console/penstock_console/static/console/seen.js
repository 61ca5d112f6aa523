// @ts-check
// Whether a person has had in view what is decided about.

// A value of an earlier call, beside which one stands, may stay folded.
const PARTS = ".item .tool, .item dt, .item .end, .item details.long:not(.was details)";

/**
 * Follows which parts of a decision were in view: each argument and the end of each item. A folded
 * text was seen when it was opened. `changed` is called when the parts that were not seen change, and
 * when they are known first (`isKnown`).
 */
export class Seen {
  constructor(changed) {
    this.changed = changed;
    this.parts = new WeakSet(); // those that were seen
    this.watched = new WeakSet();
    /** @type {IntersectionObserver | null} */
    this.watcher = null;
    /** @type {Element[]} */
    this.unseen = [];
    this.isKnown = false;
  }

  /** Look at the parts that are in the box now. */
  look(box) {
    this.box = box;
    this.watcher ??= watching(box, (found) => this.add(found, true));
    for (const part of box.querySelectorAll(PARTS)) {
      if (this.watched.has(part)) continue;
      this.watched.add(part);
      if (part instanceof HTMLDetailsElement) part.addEventListener("toggle", () => this.add(part.open ? [part] : []));
      else this.watcher.observe(part);
    }
    this.add([]);
  }

  add(found, isKnown = this.isKnown) {
    for (const part of found) this.parts.add(part);
    const unseen = [...this.box.querySelectorAll(PARTS)].filter((part) => !this.parts.has(part));
    const isOther = unseen.length !== this.unseen.length || isKnown !== this.isKnown;
    Object.assign(this, { unseen, isKnown });
    if (isOther) this.changed();
  }

  /** Bring the first part that was not seen into view. */
  show() {
    const [part] = this.unseen;
    if (part instanceof HTMLDetailsElement) part.open = true;
    (part?.querySelector("summary") ?? part)?.scrollIntoView({ block: "center" });
  }

  stop() {
    this.watcher?.disconnect();
  }
}

/** Watch what comes into view: not below the head of the page, nor below a foot that stays in view. */
function watching(box, found) {
  const height = (element) => (element && getComputedStyle(element).position === "sticky" ? element.offsetHeight : 0);
  const margin = `-${height(document.querySelector(".top"))}px 0px -${height(box.querySelector(".foot"))}px 0px`;
  return new IntersectionObserver((entries, watcher) => {
    const parts = entries.filter((each) => each.isIntersecting).map((each) => each.target);
    for (const each of parts) watcher.unobserve(each);
    found(parts);
  }, { rootMargin: margin });
}

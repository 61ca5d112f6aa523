// @ts-check
// Parses `text/event-stream` (WHATWG HTML, section 9.2). Does no I/O.

/**
 * @typedef {object} Frame
 * @property {string} data
 * @property {string | null} event
 * @property {string | null} id
 */

const LINE_END = /\r\n|\n|\r/;

/** Turns text in any pieces into frames. */
export class Parser {
  #rest = ""; // the line that has not ended
  #cr = ""; // a CR at the end of the last piece, which may be the first half of a CRLF
  /** @type {string[]} */
  #data = [];
  /** @type {string | null} */
  #event = null;
  /** @type {string | null} */
  #id = null;

  /** Return the frames that a piece of text completes. @param {string} text @returns {Frame[]} */
  feed(text) {
    // Only the new piece is searched for line ends: a long line would be searched again with each piece.
    const piece = this.#cr + text;
    this.#cr = piece.endsWith("\r") ? "\r" : "";
    const lines = piece.slice(0, piece.length - this.#cr.length).split(LINE_END);
    lines[0] = this.#rest + lines[0];
    this.#rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.#line(line));
  }

  /** @param {string} line @returns {Frame[]} */
  #line(line) {
    if (line === "") {
      const frame = { data: this.#data.join("\n"), event: this.#event, id: this.#id };
      const isFrame = this.#data.length > 0;
      this.#data = [];
      this.#event = this.#id = null;
      return isFrame ? [frame] : [];
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
    return [];
  }
}

// Shows text of agents and users on the page: never as HTML, and with invisible characters marked.

import { UNSEEN, UNSEEN_OR_SPACE } from "./unseen.js";

// So many marks of one text are elements: a page with a million elements would stand still.
export const MOST_MARKS = 1000;
const MUCH = 20; // times what is shown of a text is looked at, since it may have much white space
// Characters that emoji are made of. They are not marked outside approvals.
const EMOJI_PARTS = new Set(["\u200d", "\ufe0f"]);

function name(character) {
  return `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/**
 * Call `show` for each visible part of the text, and `mark` with the code of each character that
 * cannot be seen. With `strict`, in what a person decides about, all spaces except the ordinary
 * space are marked, too. After `mostMarks` marks, further ones are text in brackets.
 */
export function eachPart(text, show, mark, strict = false, mostMarks = MOST_MARKS) {
  const all = String(text);
  const unseen = strict ? UNSEEN_OR_SPACE : UNSEEN;
  if (!unseen.test(all)) {
    show(all);
    return;
  }
  let [plain, marks] = ["", 0];
  for (const character of all) {
    const ordinary = "\n\t".includes(character) || (!strict && EMOJI_PARTS.has(character));
    if (ordinary || !unseen.test(character)) {
      plain += character;
      continue;
    }
    marks += 1;
    if (marks > mostMarks) {
      plain += `[${name(character)}]`;
      continue;
    }
    if (plain) show(plain);
    plain = "";
    mark(name(character));
  }
  if (plain) show(plain);
}

/** Append the text to the element; replace each invisible character by a mark with its code. */
export function put(element, text, { strict = false, mostMarks = MOST_MARKS } = {}) {
  const mark = (code) => {
    const found = document.createElement("mark");
    found.textContent = code;
    element.append(found);
  };
  eachPart(text, (plain) => element.append(plain), mark, strict, mostMarks);
  return element;
}

/** Return a new element with a class and with a text of an agent or a user. */
export function make(tag, className = "", text = "", options = {}) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  return put(element, text, options);
}

/** Return a value on one line, with at most `most` characters. A value that is no string is JSON. */
export function short(value, most = 200) {
  const text = typeof value === "string" ? value : JSON.stringify(value) ?? "";
  const head = text.slice(0, MUCH * most); // a text may have a megabyte
  const line = head.replace(/\s+/gu, " ").trim();
  return head === text && line.length <= most ? line : `${line.slice(0, most - 1)}…`;
}

/** Return a tool call as text: `tool(name="value", …)`. */
export function call(tool, args) {
  const inside = Object.entries(args ?? {}).map(
    ([key, value]) => `${key}=${short(JSON.stringify(value))}`,
  );
  return `${short(tool)}(${inside.join(", ")})`;
}

// Foreign text on the page: always as text, and with what cannot be seen made visible.

// Characters that are not seen, or that reorder what is (bidi controls): all but \n and \t.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/u;
// Where something is decided, spaces that only look like one are shown too.
const UNSEEN_OR_SPACE = new RegExp(`${UNSEEN.source}|(?! )\\p{Zs}`, "u");
// Parts of ordinary emoji, left alone in what an agent says.
const EMOJI_PARTS = new Set(["\u200d", "\ufe0f"]);

function name(character) {
  return `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Append the text to the element; each unseen character becomes a mark that names it. */
export function put(element, text, { strict = false } = {}) {
  let plain = "";
  const unseen = strict ? UNSEEN_OR_SPACE : UNSEEN;
  for (const character of String(text)) {
    const ordinary = "\n\t".includes(character) || (!strict && EMOJI_PARTS.has(character));
    if (ordinary || !unseen.test(character)) {
      plain += character;
      continue;
    }
    element.append(plain);
    plain = "";
    const mark = document.createElement("mark");
    mark.textContent = name(character);
    element.append(mark);
  }
  element.append(plain);
  return element;
}

/** A new element with a class and foreign text. */
export function make(tag, className = "", text = "", options = {}) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  return put(element, text, options);
}

/** A value on one line: strings as they are, all else as JSON. */
export function short(value, most = 200) {
  const text = typeof value === "string" ? value : JSON.stringify(value) ?? "";
  const line = text.replace(/\s+/gu, " ").trim();
  return line.length <= most ? line : `${line.slice(0, most - 1)}…`;
}

/** `tool(name="value", …)`. */
export function call(tool, args) {
  const inside = Object.entries(args ?? {}).map(
    ([key, value]) => `${key}=${short(JSON.stringify(value))}`,
  );
  return `${short(tool)}(${inside.join(", ")})`;
}

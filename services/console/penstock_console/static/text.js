// Shows text of agents and users on the page: never as HTML, and with invisible characters marked.

// Characters that are invisible, or that change the order of visible characters (bidi controls).
// `put` makes an exception for \n and \t.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/u;
// In an approval, all spaces except the ordinary space are marked, too.
const UNSEEN_OR_SPACE = new RegExp(`${UNSEEN.source}|(?! )\\p{Zs}`, "u");
// Characters that emoji are made of. They are not marked outside approvals.
const EMOJI_PARTS = new Set(["\u200d", "\ufe0f"]);

function name(character) {
  return `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Append the text to the element; replace each invisible character by a mark with its code. */
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

/** Return a new element with a class and with a text of an agent or a user. */
export function make(tag, className = "", text = "", options = {}) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  return put(element, text, options);
}

/** Return a value on one line, with at most `most` characters. A value that is no string is JSON. */
export function short(value, most = 200) {
  const text = typeof value === "string" ? value : JSON.stringify(value) ?? "";
  const line = text.replace(/\s+/gu, " ").trim();
  return line.length <= most ? line : `${line.slice(0, most - 1)}…`;
}

/** Return a tool call as text: `tool(name="value", …)`. */
export function call(tool, args) {
  const inside = Object.entries(args ?? {}).map(
    ([key, value]) => `${key}=${short(JSON.stringify(value))}`,
  );
  return `${short(tool)}(${inside.join(", ")})`;
}

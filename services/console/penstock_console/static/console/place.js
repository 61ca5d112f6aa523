// @ts-check
// Where the reader is: the address, and links that change it without loading the page anew.

/** The event on `window` after the address has changed. `detail` says whether it was replaced. */
export const MOVED = "penstock-moved";

/** The pages of a run and of an approval. */
export const runPlace = (id) => `/console/runs/${encodeURIComponent(id)}`;
export const approvalPlace = (id) => `/console/inbox/${encodeURIComponent(id)}`;

/** Go to a path of the console. With `replace`, the place before is no step back. */
export function go(path, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", path);
  else history.pushState(null, "", path);
  dispatchEvent(new CustomEvent(MOVED, { detail: { replace } }));
}

const OWN = /^\/(?:$|docs$|console(?:[/?]|$))/u;

/** Follow links of the console inside this page, and other links as ever. */
export function follows(event) {
  const link = event.target.closest?.("a[href]");
  const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey;
  if (!link || !isPlain || link.target || !OWN.test(link.getAttribute("href"))) return;
  event.preventDefault();
  if (link.href !== location.href) go(link.getAttribute("href"));
}

/** Give the focus to the first element that matches, if there is one. */
export function focusOn(selector) {
  const found = document.querySelector(selector);
  if (found instanceof HTMLElement) found.focus();
}

/** Return the values of these names in a query, with an empty text for each that is missing. */
export function query(search, names) {
  const found = new URLSearchParams(search);
  return Object.fromEntries(names.map((name) => [name, found.get(name) ?? ""]));
}

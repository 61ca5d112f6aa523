// Calls the HTTP API with the rights of the signed-in user. The browser sends the cookie that POST
// /v1/login has set, and each POST has a CSRF token.

export class Refused extends Error {
  /** `errors` are the mistakes in what was sent, each with `field`, `message` and perhaps `line`. */
  constructor(status, message, errors = undefined) {
    super(message);
    this.status = status;
    this.errors = errors;
  }

  /** Whether the same request may succeed later. */
  get mayPass() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

let csrf = null;

async function csrfToken() {
  csrf ??= (async () => {
    const { csrf_token: token, header } = await ask("/v1/csrf");
    return { [header]: token };
  })();
  try {
    return await csrf;
  } catch (error) {
    csrf = null;
    throw error;
  }
}

/** The event on `window` after an answer that asks who the caller is. */
export const UNKNOWN_CALLER = "penstock-unknown-caller";

async function ask(path, options = {}) {
  return (await exchange(path, options)).body;
}

async function exchange(path, options) {
  let answer;
  try {
    answer = await fetch(path, {
      credentials: "same-origin",
      redirect: "error",
      ...options,
      // A page cannot set User-Agent. The audit of decisions says by what a person saw or decided.
      headers: { accept: "application/json", "penstock-client": "console", ...options.headers },
    });
  } catch {
    throw new Refused(0, "Penstock does not answer. Is it still running?");
  }
  const text = await answer.text();
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    // The body is not JSON. The status alone then describes the error.
  }
  if (answer.status === 401) dispatchEvent(new Event(UNKNOWN_CALLER));
  if (!answer.ok) {
    throw new Refused(answer.status, body?.detail ?? body?.title ?? `HTTP ${answer.status}`, body?.errors);
  }
  return { body, date: new Date(answer.headers.get("date") ?? Date.now()) };
}

/** Send a GET, and return the JSON of the answer. Throws Refused. */
export function get(path) {
  return ask(path);
}

/** Send a GET; return the JSON of the answer, and the server's time. Throws Refused. */
export function getDated(path) {
  return exchange(path, {});
}

/** Send a POST with a JSON body, or with a text of another type, and return the JSON of the answer. Throws Refused. */
export function post(path, body, type = "application/json") {
  return change("POST", path, type === "application/json" ? JSON.stringify(body) : body, type);
}

/** Send a DELETE, and return the JSON of the answer. Throws Refused. */
export function remove(path) {
  return change("DELETE", path);
}

async function change(method, path, body, type) {
  const send = async () =>
    ask(path, {
      method,
      headers: { ...(type && { "content-type": type }), ...(await csrfToken()) },
      body,
    });
  try {
    return await send();
  } catch (error) {
    if (error.status !== 403) throw error;
    // The CSRF token may belong to an earlier sign-in or to another edge process. A request with a
    // wrong CSRF token changes nothing, so it is sent again with a new token.
    csrf = null;
    return send();
  }
}

/** Exchange the token for a cookie. Throws Refused. */
export async function signIn(token) {
  csrf = null;
  if (!/^[\x21-\x7e]+$/u.test(token)) throw new Refused(422, "A token has no spaces or accents.");
  const headers = { authorization: `Bearer ${token}` };
  await ask("/v1/login", { method: "POST", headers });
}

/** Delete the cookie. Throws Refused. */
export async function signOut() {
  csrf = null;
  await ask("/v1/logout", { method: "POST" });
}

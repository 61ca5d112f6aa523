// The HTTP API, with the caller's own rights: the cookie of POST /v1/login, and a CSRF token.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
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

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, {
      credentials: "same-origin",
      redirect: "error",
      ...options,
      headers: { accept: "application/json", ...options.headers },
    });
  } catch {
    throw new Refused(0, "Penstock does not answer. Is it still running?");
  }
  const text = await answer.text();
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    // not JSON: the status says enough
  }
  if (!answer.ok) {
    throw new Refused(answer.status, body?.detail ?? body?.title ?? `HTTP ${answer.status}`);
  }
  return body;
}

/** GET; JSON. Throws Refused. */
export function get(path) {
  return ask(path);
}

/** POST JSON; JSON. Throws Refused. */
export async function post(path, body) {
  const send = async () =>
    ask(path, {
      method: "POST",
      headers: { "content-type": "application/json", ...(await csrfToken()) },
      body: JSON.stringify(body),
    });
  try {
    return await send();
  } catch (error) {
    if (error.status !== 403) throw error;
    csrf = null; // of another session, or of an edge that was replaced; nothing was done
    return send();
  }
}

/** The token becomes the cookie; who that is. Throws Refused. */
export async function signIn(token) {
  csrf = null;
  if (!/^[\x21-\x7e]+$/u.test(token)) throw new Refused(422, "A token has no spaces or accents.");
  return ask("/v1/login", { method: "POST", headers: { authorization: `Bearer ${token}` } });
}

/** The cookie is taken back. */
export async function signOut() {
  csrf = null;
  await ask("/v1/logout", { method: "POST" });
}

// @ts-check
// The console: chooses the screen for the address, and shows who is signed in.

import { UNKNOWN_CALLER, get, signIn, signOut } from "../api.js";
import { Automation, Automations } from "./automations.js";
import { Compare } from "./compare.js";
import { Costs } from "./costs.js";
import { Docs } from "./docs.js";
import { Earlier } from "./earlier.js";
import { Inbox } from "./inbox.js";
import { Keys } from "./keys.js";
import { MOVED, focusOn, follows, go } from "./place.js";
import { Run } from "./run.js";
import { Runs } from "./runs.js";
import { Start } from "./start.js";
import { System } from "./system.js";
import { Component, Said, html, render } from "./view.js";
import { entitle, followWaiting } from "./waiting.js";
import { Workflow, Workflows } from "./workflows.js";

// The first pattern that matches the path has the screen. `name` is the title of the page.
const SCREENS = [
  { pattern: /^\/(?:console\/?)?$/u, name: "Start", show: (_, props) => html`<${Start} ...${props} />` },
  { pattern: /^\/console\/runs\/?$/u, name: "Runs", show: (_, props) => html`<${Runs} ...${props} />` },
  {
    pattern: /^\/console\/runs\/([^/]+)$/u,
    name: "Run",
    show: ([, id], props) => html`<${Run} runId=${decoded(id)} ...${props} />`,
  },
  {
    pattern: /^\/console\/compare\/([^/]+)\/([^/]+)$/u,
    name: "Compare",
    show: ([, ...ids], props) => html`<${Compare} ids=${ids.map(decoded)} ...${props} />`,
  },
  { pattern: /^\/console\/inbox\/?$/u, name: "Inbox", show: (_, props) => html`<${Inbox} ...${props} />` },
  { pattern: /^\/console\/inbox\/earlier$/u, name: "Decisions", show: (_, props) => html`<${Earlier} ...${props} />` },
  {
    pattern: /^\/console\/inbox\/([^/]+)$/u,
    name: "Inbox",
    show: ([, id], props) => html`<${Inbox} approvalId=${decoded(id)} ...${props} />`,
  },
  { pattern: /^\/console\/workflows\/?$/u, name: "Workflows", show: (_, props) => html`<${Workflows} ...${props} />` },
  {
    pattern: /^\/console\/workflows\/([^/]+)$/u,
    name: "Workflow",
    show: ([, name], props) => html`<${Workflow} name=${decoded(name)} ...${props} />`,
  },
  { pattern: /^\/console\/automations\/?$/u, name: "Automations", show: (_, props) => html`<${Automations} ...${props} />` },
  {
    pattern: /^\/console\/automations\/([^/]+)$/u,
    name: "Automation",
    show: ([, id], props) => html`<${Automation} ruleId=${decoded(id)} ...${props} />`,
  },
  { pattern: /^\/console\/costs\/?$/u, name: "Costs", show: (_, props) => html`<${Costs} ...${props} />` },
  { pattern: /^\/console\/system\/?$/u, name: "System", show: (_, props) => html`<${System} ...${props} />` },
  { pattern: /^\/docs$/u, name: "API", show: (_, props) => html`<${Docs} ...${props} />` },
];
// Each with the scope without which a caller does not see it.
const LINKS = [
  ["/", "Start", "start"],
  ["/console/runs", "Runs", "read"],
  ["/console/inbox", "Inbox", "decide"],
  ["/console/workflows", "Workflows", "read"],
  ["/console/automations", "Automations", "automate"],
  ["/console/costs", "Costs", "read"],
  ["/console/system", "System", "administer"],
  ["/docs", "API", null],
];
// Where whoever may not start runs begins: at the first that a scope allows.
const BEGINNINGS = [["decide", "/console/inbox"], ["read", "/console/runs"]];
const MOST_MS = 2 ** 31 - 1; // a browser's timer cannot be set to more

const screenAt = (path) => SCREENS.find((each) => each.pattern.test(path));

function decoded(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

const NOT_KEPT =
  "The token is valid, but the browser has not kept the cookie: it needs HTTPS, or " +
  "PENSTOCK_AUTH_COOKIE_SECURE=false on the server.";

// Why the provider's sign-in has failed, as the address says.
const FAILED = {
  denied: "The provider has not let you in.",
  not_begun: "This sign-in was not begun in this browser, or took longer than ten minutes.",
  not_accepted: "The provider's answer cannot be accepted. The log of the edge says why.",
  unavailable: "The provider does not answer. Try again in a moment.",
  too_large: "The provider's token is too large for a cookie. Your operator can give it fewer claims.",
};

/** Return the address of this page, for the way back from the provider. */
function here() {
  const search = new URLSearchParams(location.search);
  search.delete("sign_in");
  return `${location.pathname}${search.size ? `?${search}` : ""}`;
}

class SignIn extends Component {
  async submit(event) {
    event.preventDefault();
    this.setState({ error: null });
    try {
      await signIn(this.field.value.trim());
      this.field.value = "";
      await get("/v1/csrf");
      this.props.onDone();
    } catch (error) {
      this.setState({ error: error.status === 401 && !this.field.value ? NOT_KEPT : error.message });
    }
  }

  async componentDidMount() {
    const { oidc } = await get("/v1/login").catch(() => ({ oidc: null }));
    this.setState({ oidc, isRead: true }, () => focusOn(oidc ? ".provider" : "#token"));
  }

  render({ hadSignedIn }, { error, isRead, oidc }) {
    const why = hadSignedIn ? "Your sign-in has ended. What runs goes on." : "You have not signed in yet, or your sign-in has ended.";
    const failed = FAILED[new URLSearchParams(location.search).get("sign_in") ?? ""];
    if (!isRead) return html`<main></main>`;
    return html`<main>
      <div class="panel sign-in">
        <h1>Who are you?</h1>
        <p>${why}</p>
        ${failed && html`<p class="error" role="alert">${failed}</p>`}
        ${oidc && html`<p><a class="button provider" href=${`${oidc.begin}?next=${encodeURIComponent(here())}`}>Sign in at ${new URL(oidc.issuer).host}</a></p>`}
        ${oidc ? html`<details><summary>Sign in with a token</summary>${this.form(error)}</details>` : this.form(error)}
      </div>
    </main>`;
  }

  form(error) {
    return html`<form onSubmit=${(event) => this.submit(event)}>
      <p>Paste a token (a JWT); it becomes a cookie that no script can read, until it expires or you sign out.</p>
      <label for="token">Token
        <input id="token" type="password" autocomplete="off" spellcheck="false" required ref=${(field) => (this.field = field)} /></label>
      <button type="submit">Sign in</button>
      <p class="error" role="alert"><${Said} text=${error ?? ""} /></p>
    </form>`;
  }
}

class App extends Component {
  constructor() {
    super();
    this.state = { path: location.pathname, search: location.search, live: null, isUnknown: false, turn: 0, me: null, isAsked: false, waiting: "" };
    this.onLive = (live) => live !== this.state.live && this.setState({ live });
  }

  componentDidMount() {
    const moved = (event) => {
      const isReplaced = event instanceof CustomEvent && event.detail.replace;
      const isOther = location.pathname !== this.state.path;
      const isOtherScreen = screenAt(location.pathname)?.name !== screenAt(this.state.path)?.name;
      this.setState({ path: location.pathname, search: location.search, ...(isOtherScreen && { live: null }) }, () => {
        // An address that was replaced is the same place for the reader, who keeps the focus.
        if (isOther && !isReplaced) focusOn("h1");
      });
    };
    addEventListener(MOVED, moved);
    addEventListener("popstate", moved);
    addEventListener("click", follows);
    addEventListener(UNKNOWN_CALLER, () => this.setState({ isUnknown: true }));
    this.read();
  }

  /** Ask who the caller is, now and when the sign-in expires. */
  async read() {
    clearTimeout(this.timer);
    const me = await get("/v1/me").catch(() => null);
    this.setState({ isAsked: true, ...(me && { me }) });
    if (!me) return;
    if (!this.isFollowing && ["read", "decide"].every((each) => me.scopes.includes(each))) {
      this.isFollowing = true;
      followWaiting((waiting) => this.setState({ waiting }));
    }
    if (me.expires_at) {
      const left = Date.parse(me.expires_at) - Date.now() + 1000;
      this.timer = setTimeout(() => this.read(), Math.min(Math.max(left, 1000), MOST_MS));
    }
    const [, beginning] = BEGINNINGS.find(([scope]) => me.scopes.includes(scope)) ?? [];
    if (location.pathname === "/" && !me.scopes.includes("start") && beginning) go(beginning, { replace: true });
  }

  componentDidCatch(error) {
    console.error(error);
    this.setState({ failed: error.message });
  }

  render(_, { path, search, live, isUnknown, turn, failed, me, isAsked, waiting }) {
    const mayOpen = (scope) => !me || scope === null || me.scopes.includes(scope);
    const screen = screenAt(path);
    const isAt = (place) => (place === "/" ? screen?.name === "Start" : path.startsWith(place));
    const missing = LINKS.filter(([place]) => isAt(place)).map(([, , scope]) => scope).find((scope) => !mayOpen(scope));
    const props = { search, onLive: this.onLive, key: `${screen?.name} ${turn}` };
    if (screen && screen.name !== "Run") entitle(screen.name);
    return html`<header class="top">
        <button type="button" class="skip" onClick=${() => focusOn("h1")}>Skip to the page</button>
        <a class="brand" href="/"><img src="/assets/icon.svg" alt="" width="24" height="24" />Penstock</a>
        <nav aria-label="Screens">
          ${isAsked && !isUnknown && LINKS.filter(([, , scope]) => mayOpen(scope)).map(([place, name]) => html`<a href=${place} aria-current=${isAt(place) ? "page" : undefined}>${name}${name === "Inbox" && waiting && ` (${waiting})`}</a>`)}
        </nav>
        <span class=${`live is-${live ?? "off"}`} role="status">${{ live: "live", lost: "connection lost, it comes back by itself" }[live] ?? ""}</span>
        <${Keys} screen=${screen?.name} />
        ${me?.credential === "cookie" && !isUnknown && html`<span class="user">${me.user_id}</span> <button type="button" class="quiet small" onClick=${() => this.leave()}>Sign out</button>`}
      </header>
      ${failed
        ? html`<main><h1 tabindex="-1">This screen has failed</h1><p class="notice" role="alert">${failed}</p><p><a href="/console">Load the console anew</a></p></main>`
        : isUnknown
          ? html`<${SignIn} hadSignedIn=${me !== null} onDone=${() => this.setState({ isUnknown: false, turn: turn + 1, me: null }, () => this.read())} />`
          : missing
            ? html`<main><h1 tabindex="-1">This screen is not for you</h1><p class="notice" role="alert">It needs the scope <code>${missing}</code>, which your sign-in does not have.</p>
                ${me.scopes.length === 0 && html`<p>It has no scope at all: its token names none, and no role that gives one. Ask your operator.</p>`}</main>`
          : screen
            ? screen.show(screen.pattern.exec(path), props)
            : html`<main><h1 tabindex="-1">There is no such page</h1><p><a href="/console/runs">All runs</a></p></main>`}`;
  }

  async leave() {
    const { oidc } = await get("/v1/login").catch(() => ({ oidc: null }));
    await signOut();
    // Either way, no data of the user stays on the page. Without a sign-out at the provider, the
    // next sign-in would ask nothing.
    if (oidc?.end) location.assign(oidc.end);
    else location.reload();
  }
}

render(html`<${App} />`, document.getElementById("app"));

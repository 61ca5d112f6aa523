// @ts-check
// The console: chooses the screen for the address, and shows who is signed in.

import { UNKNOWN_CALLER, get, signIn, signOut, signedIn } from "../api.js";
import { Automation, Automations } from "./automations.js";
import { Compare } from "./compare.js";
import { Costs } from "./costs.js";
import { Docs } from "./docs.js";
import { Inbox } from "./inbox.js";
import { MOVED, focusOn, follows } from "./place.js";
import { Run } from "./run.js";
import { Runs } from "./runs.js";
import { Start } from "./start.js";
import { System } from "./system.js";
import { Component, html, render } from "./view.js";
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
const LINKS = [
  ["/", "Start"],
  ["/console/runs", "Runs"],
  ["/console/inbox", "Inbox"],
  ["/console/workflows", "Workflows"],
  ["/console/automations", "Automations"],
  ["/console/costs", "Costs"],
  ["/console/system", "System"],
  ["/docs", "API"],
];

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

  componentDidMount() {
    this.field.focus();
  }

  render(_, { error }) {
    return html`<main>
      <form class="panel sign-in" onSubmit=${(event) => this.submit(event)}>
        <h1>Who are you?</h1>
        <p>Your sign-in has ended, or you have not signed in yet. Paste a token (a JWT); it becomes a cookie
          that no script can read, until it expires or you sign out.</p>
        <label for="token">Token
          <input id="token" type="password" autocomplete="off" spellcheck="false" required ref=${(field) => (this.field = field)} /></label>
        <button type="submit">Sign in</button>
        <p class="error" role="alert">${error}</p>
      </form>
    </main>`;
  }
}

class App extends Component {
  constructor() {
    super();
    this.state = { path: location.pathname, search: location.search, live: null, isUnknown: false, turn: 0 };
    this.onLive = (live) => live !== this.state.live && this.setState({ live });
  }

  componentDidMount() {
    const moved = () => {
      const isOther = location.pathname !== this.state.path;
      const isOtherScreen = screenAt(location.pathname) !== screenAt(this.state.path);
      this.setState({ path: location.pathname, search: location.search, ...(isOtherScreen && { live: null }) }, () => {
        if (isOther) focusOn("h1");
      });
    };
    addEventListener(MOVED, moved);
    addEventListener("popstate", moved);
    addEventListener("click", follows);
    addEventListener(UNKNOWN_CALLER, () => this.setState({ isUnknown: true }));
  }

  componentDidCatch(error) {
    console.error(error);
    this.setState({ failed: error.message });
  }

  render(_, { path, search, live, isUnknown, turn, failed }) {
    const user = signedIn();
    const screen = screenAt(path);
    const isAt = (place) => (place === "/" ? screen?.name === "Start" : path.startsWith(place));
    const props = { search, onLive: this.onLive, key: `${screen?.name} ${turn}` };
    if (screen && screen.name !== "Run") document.title = `${screen.name} - Penstock`;
    return html`<header class="top">
        <a class="brand" href="/"><img src="/assets/icon.svg" alt="" width="24" height="24" />Penstock</a>
        <nav aria-label="Screens">
          ${LINKS.map(([place, name]) => html`<a href=${place} aria-current=${isAt(place) ? "page" : undefined}>${name}</a>`)}
        </nav>
        <span class=${`live is-${live ?? "off"}`} role="status">${{ live: "live", lost: "connection lost, it comes back by itself" }[live] ?? ""}</span>
        ${user && !isUnknown && html`<span class="user">${user}</span> <button type="button" class="quiet small" onClick=${() => this.leave()}>Sign out</button>`}
      </header>
      ${failed
        ? html`<main><h1 tabindex="-1">This screen has failed</h1><p class="notice" role="alert">${failed}</p><p><a href="/console">Load the console anew</a></p></main>`
        : isUnknown
          ? html`<${SignIn} onDone=${() => this.setState({ isUnknown: false, turn: turn + 1 })} />`
          : screen
            ? screen.show(screen.pattern.exec(path), props)
            : html`<main><h1 tabindex="-1">There is no such page</h1><p><a href="/console/runs">All runs</a></p></main>`}`;
  }

  async leave() {
    await signOut();
    location.reload(); // so that no data of the user stays on the page
  }
}

render(html`<${App} />`, document.getElementById("app"));

// The frame: navigation, theme, sign-in, and the view that is shown.
import { setKey } from "./api.js";
import { open, useFeed } from "./feed.js";
import { Problem, html, render, useEffect, useErrorBoundary, useLayoutEffect, useState } from "./lib.js";
import { Conversation, Conversations } from "./views/conversations.js";
import { Log } from "./views/log.js";
import { Memory } from "./views/memory.js";
import { Models } from "./views/models.js";
import { Request } from "./views/request.js";
import { Savings } from "./views/savings.js";
import { SignIn, Start } from "./views/start.js";

const VIEWS = {
  start: ["Start", Start],
  conversations: ["Conversations", Conversations],
  models: ["Models", Models],
  savings: ["Savings", Savings],
  log: ["Log", Log],
  memory: ["Memory", Memory],
};
const INNER = { c: ["Conversation", Conversation, "conversations"], r: ["Request", Request, "log"] };
const THEMES = ["auto", "light", "dark"];
const KEPT = "spillway-theme";

// The link that Spillway prints at its start has the key behind the address, where no server sees it.
const given = location.hash.match(/^#key=(.+)$/)?.[1];
if (given) {
  setKey(decodeURIComponent(given));
  history.replaceState(null, "", location.pathname);
}

const place = () => location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);

function usePlace() {
  const [at, setAt] = useState(place);
  useEffect(() => {
    const moved = () => setAt(place());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return at;
}

// What is kept may be forbidden by the browser: then a choice holds until the page is left.
const keep = (name) => {
  try {
    localStorage.setItem(KEPT, name);
  } catch {}
};
const kept = () => {
  try {
    return THEMES.find((name) => name === localStorage.getItem(KEPT));
  } catch {}
};

function Theme() {
  const [name, setName] = useState(kept() ?? THEMES[0]);
  useLayoutEffect(() => {
    document.documentElement.dataset.theme = name;
    keep(name);
  }, [name]);
  const next = THEMES[(THEMES.indexOf(name) + 1) % THEMES.length];
  return html`<button class="quiet" onClick=${() => setName(next)}>Theme: ${name}</button>`;
}

const Link = ({ name, label, current }) =>
  html`<a href=${`#/${name}`} aria-current=${current === name ? "page" : null}>${label}</a>`;

const LINKS = { new: "connecting …", open: "live", lost: "not connected, retrying …" };

function signOut() {
  setKey("");
  location.reload(); // so that nothing stays that was seen with it
}

function Header({ current, told }) {
  return html`<header>
    <a class="brand" href="#/start"><img src="/ui/icon.svg" alt="" width="24" height="24" />Spillway</a>
    <nav aria-label="Views">
      ${Object.entries(VIEWS).filter(([name]) => name !== "memory" || told.session?.memory).map(([name, [label]]) => html`<${Link} key=${name} name=${name} label=${label} current=${current} />`)}
    </nav>
    <div class="aside">
      ${current && html`<span class=${`link ${told.link}`}>${LINKS[told.link]}</span>`}
      <${Theme} />
      ${["key", "admin"].includes(told.session?.role) && html`<button class="quiet" onClick=${signOut}>Sign out</button>`}
    </div>
  </header>`;
}

/** The view for a place, if there is one. */
function chosen([name, argument]) {
  if (INNER[name] && argument) return { view: INNER[name], current: INNER[name][2], argument };
  return VIEWS[name] ? { view: VIEWS[name], current: name } : null;
}

function Shown({ view: [label, View], argument }) {
  const [error, again] = useErrorBoundary();
  useEffect(() => {
    document.title = `${label} · Spillway`;
  }, [label]);
  if (!error) return html`<${View} argument=${argument} />`;
  return html`<${Problem} error=${error} /><button onClick=${again}>Try again</button>`;
}

function App() {
  const at = usePlace();
  const told = useFeed();
  useEffect(() => void open(), []);
  const { view, current, argument } = chosen(at) ?? {};
  useEffect(() => {
    // Where nothing was seen yet, what Spillway is comes first; unless a link was followed before this runs.
    if (!chosen(place()) && told.link === "open") location.replace(`#/${told.rows.size ? "conversations" : "start"}`);
  }, [view, told.link]);
  const closed = told.session && told.session.role == null;
  // A link to the part behind the header would be taken for a place of the page.
  const skip = (event) => {
    event.preventDefault();
    document.querySelector("main h1")?.focus();
  };
  const ready = view && told.session && told.link !== "new";
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${Header} current=${closed ? "" : current} told=${told} />
    <main id="main">
      ${closed ? html`<${SignIn} />` : ready && html`<${Shown} key=${[view[0], argument].join()} view=${view} argument=${argument} />`}
      ${!told.session && told.link === "lost" && html`<p class="problem" role="alert">Spillway can't be reached. Retrying …</p>`}
    </main>
    <footer>Spillway ${told.session?.version}${told.session?.content === false && " · content is hidden for this key"}</footer>
    <p class="unseen" role="status" aria-live="polite">${told.said}</p>`;
}

const root = document.getElementById("page");
root.replaceChildren();
render(html`<${App} />`, root);

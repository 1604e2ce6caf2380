// The dashboard: a client of the public API.
import { html, render, useEffect, useErrorBoundary, useRef, useState } from "../vendor/preact.js";
import { get, onKeyRefused } from "./api.js";
import { CallerContext } from "./caller.js";
import { dropDrafts } from "./drafts.js";
import { areOn, turn as turnShortcuts, useShortcuts } from "./keyboard.js";
import { Heading, Loading } from "./parts/basics.js";
import { Failure } from "./parts/problem.js";
import { JobPage } from "./pages/job.js";
import { JobsPage } from "./pages/jobs.js";
import { SignInPage } from "./pages/sign_in.js";
import { WorkersPage } from "./pages/workers.js";
import { usePolled } from "./polling.js";
import { go, useRoute } from "./router.js";
import { keep, key } from "./session.js";
import { choose, chosen, follow, THEMES } from "./theme.js";

const PLACES = [["jobs", "Jobs"], ["new", "New job"], ["workers", "Workers"]];
const KEYS = [
  ["/", "Search jobs"],
  ["j, k", "Next and previous job"],
  ["Enter", "Open it"],
  ["n", "New job"],
  ["l", "List of jobs"],
  ["w", "Workers"],
  ["?", "This list"],
];

function App() {
  const [asks, setAsks] = useState(false);
  const [turn, setTurn] = useState(0);
  useEffect(() => onKeyRefused(() => setAsks(true)), []);
  const signedIn = () => {
    setAsks(false);
    setTurn(turn + 1);
  };
  if (asks) return html`<${SignInPage} onSignedIn=${signedIn} />`;
  return html`<${Signed} key=${turn} onSignOut=${() => (keep(""), dropDrafts(), setAsks(true))} />`;
}

function Signed({ onSignOut }) {
  const route = useRoute();
  const [help, setHelp] = useState(false);
  const { value: caller, error } = usePolled((_, signal) => get("v1/me", { signal }), 0, "me");
  useShortcuts({
    n: () => go("#/new"),
    l: () => go("#/jobs"),
    w: () => go("#/workers"),
    "?": () => setHelp(true),
  });
  return html`
    <a class="skip" href="#content" onClick=${skip}>Skip to the content</a>
    <header class="top">
      <a class="brand" href="#/jobs">Evenkeel</a>
      <nav aria-label="Pages">
        ${PLACES.map(([place, text]) => html`<a key=${place} href=${`#/${place}`} aria-current=${(route.parts[0] ?? "jobs") === place ? "page" : undefined}>${text}</a>`)}
      </nav>
      <div class="top-tools">
        <button type="button" class="plain small" onClick=${() => setHelp(true)} aria-label="Keyboard shortcuts">?</button>
        <${Theme} />
        ${caller && key() && html`<span class="quiet small">${caller.tenant}</span>`}
        ${key() && html`<button type="button" class="plain small" onClick=${onSignOut}>Sign out</button>`}
      </div>
    </header>
    <main id="content" tabindex="-1">
      ${caller
        ? html`<${CallerContext.Provider} value=${caller}><${Guarded} route=${route} /><//>`
        : error ? html`<${Heading} title="No answer" /><${Failure} error=${error} />` : html`<${Loading} />`}
    </main>
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}
  `;
}

/** A page that fails is told to have, and the others go on. */
function Guarded({ route }) {
  const [fault, forget] = useErrorBoundary((error) => console.error(error));
  useEffect(() => forget(), [route.parts.join("/")]);
  if (!fault) return html`<${Page} route=${route} />`;
  return html`<${Heading} title="This page failed" /><p>${String(fault)}</p><${Reload} />`;
}

const Reload = () => html`<button type="button" onClick=${() => location.reload()}>Load it again</button>`;

function Page({ route: { parts, parameters } }) {
  const [page = "jobs", id, section] = parts;
  if (page === "jobs" && id) return html`<${JobPage} key=${id} id=${id} section=${section} />`;
  if (page === "jobs") return html`<${JobsPage} parameters=${parameters} />`;
  if (page === "new") return html`<${Editor} key=${parameters.from} from=${parameters.from} />`;
  if (page === "workers") return html`<${WorkersPage} />`;
  return html`<${Heading} title="No such page" /><p><a href="#/jobs">All jobs</a></p>`;
}

/** The editor is by far the largest part, so it is loaded when it is wanted. */
function Editor({ from }) {
  const [part, setPart] = useState({});
  useEffect(() => {
    import("./pages/new_job.js").then((loaded) => setPart({ loaded }), (error) => setPart({ error }));
  }, []);
  if (part.error) return html`<${Heading} title="New job" /><p>The editor could not be loaded.</p><${Reload} />`;
  return part.loaded ? html`<${part.loaded.NewJobPage} from=${from} />` : null;
}

function Theme() {
  const [theme, setTheme] = useState(chosen());
  return html`<select class="small" aria-label="Colours" value=${theme} onChange=${(event) => (choose(event.target.value), setTheme(event.target.value))}>
    ${THEMES.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
  </select>`;
}

function Help({ onClose }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} onClose=${onClose} aria-labelledby="help-title">
    <h2 id="help-title">Keyboard</h2>
    <dl class="facts">${KEYS.map(([keys, text]) => html`<div key=${keys}><dt><kbd>${keys}</kbd></dt><dd>${text}</dd></div>`)}</dl>
    <label class="check"><input type="checkbox" checked=${areOn()} onChange=${(event) => turnShortcuts(event.target.checked)} /> Keys by themselves do something</label>
    <button type="button" onClick=${() => dialog.current.close()}>Close</button>
  </dialog>`;
}

/** Not by the address: that tells the page. */
function skip(event) {
  event.preventDefault();
  document.getElementById("content").focus();
}

follow();
render(html`<${App} />`, document.getElementById("app"));

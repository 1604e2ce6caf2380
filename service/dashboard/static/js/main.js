// The dashboard's entry point: sign-in, navigation and pages. The dashboard is a client of the public API.
import { html, render, useEffect, useErrorBoundary, useRef, useState } from "../vendor/preact.js";
import { get, onKeyRefused } from "./api.js";
import { deleteDrafts } from "./drafts.js";
import { areEnabled, setEnabled as setShortcutsEnabled, useShortcuts } from "./keyboard.js";
import { Heading, Loading } from "./parts/basics.js";
import { Failure } from "./parts/problem.js";
import { JobPage } from "./pages/job.js";
import { JobsPage } from "./pages/jobs.js";
import { SignInPage } from "./pages/sign_in.js";
import { WorkersPage } from "./pages/workers.js";
import { usePolled } from "./polling.js";
import { go, useRoute } from "./router.js";
import { CallerContext, key, storeKey } from "./session.js";
import { chooseTheme, chosenTheme, startTheme, THEMES } from "./theme.js";

const PAGES = [["jobs", "Jobs"], ["new", "New job"], ["workers", "Workers"]];
const KEYS = [
  [["/"], "Search jobs"],
  [["j", "k"], "Next or previous job in the list"],
  [["Enter"], "Open the job"],
  [["n"], "New job"],
  [["l"], "List of jobs"],
  [["w"], "Workers"],
  [["?"], "Show this help"],
];

function App() {
  const [needsKey, setNeedsKey] = useState(false);
  const [sessions, setSessions] = useState(0);
  useEffect(() => onKeyRefused(() => setNeedsKey(true)), []);
  const signedIn = () => {
    setNeedsKey(false);
    setSessions(sessions + 1);
  };
  if (needsKey) return html`<${SignInPage} onSignedIn=${signedIn} />`;
  return html`<${SignedIn} key=${sessions} onSignOut=${() => (storeKey(""), deleteDrafts(), setNeedsKey(true))} />`;
}

function SignedIn({ onSignOut }) {
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
    <a class="skip" href="#content" onClick=${skipToContent}>Skip to the content</a>
    <header class="top">
      <a class="brand" href="#/jobs">Evenkeel</a>
      <nav aria-label="Pages">
        ${PAGES.map(([place, text]) => html`<a key=${place} href=${`#/${place}`} aria-current=${(route.parts[0] ?? "jobs") === place ? "page" : undefined}>${text}</a>`)}
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
        ? html`<${CallerContext.Provider} value=${caller}><${GuardedPage} route=${route} /><//>`
        : error ? html`<${Heading} title="No response" /><${Failure} error=${error} />` : html`<${Loading} />`}
    </main>
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}
  `;
}

/** Shows the error of a page that failed; the other pages still work. */
function GuardedPage({ route }) {
  const [fault, reset] = useErrorBoundary((error) => console.error(error));
  useEffect(() => reset(), [route.parts.join("/")]);
  if (!fault) return html`<${Page} route=${route} />`;
  return html`<${Heading} title="This page failed" /><p>${String(fault)}</p><${Reload} />`;
}

const Reload = () => html`<button type="button" onClick=${() => location.reload()}>Reload</button>`;

function Page({ route: { parts, parameters } }) {
  const [page = "jobs", id, section] = parts;
  if (page === "jobs" && id) return html`<${JobPage} key=${id} id=${id} section=${section} />`;
  if (page === "jobs") return html`<${JobsPage} parameters=${parameters} />`;
  if (page === "new") return html`<${Editor} key=${parameters.from} from=${parameters.from} />`;
  if (page === "workers") return html`<${WorkersPage} />`;
  return html`<${Heading} title="No such page" /><p><a href="#/jobs">All jobs</a></p>`;
}

/** The editor is by far the largest part, so it is loaded when it is opened. */
function Editor({ from }) {
  const [part, setPart] = useState({});
  useEffect(() => {
    import("./pages/new_job.js").then((loaded) => setPart({ loaded }), (error) => setPart({ error }));
  }, []);
  if (part.error) return html`<${Heading} title="New job" /><p>The editor could not be loaded.</p><${Reload} />`;
  return part.loaded ? html`<${part.loaded.NewJobPage} from=${from} />` : null;
}

function Theme() {
  const [theme, setTheme] = useState(chosenTheme());
  return html`<select class="small" aria-label="Theme" value=${theme} onChange=${(event) => (chooseTheme(event.target.value), setTheme(event.target.value))}>
    ${THEMES.map(([name, text]) => html`<option key=${name} value=${name}>${text}</option>`)}
  </select>`;
}

function Help({ onClose }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} onClose=${onClose} aria-labelledby="help-title">
    <h2 id="help-title">Keyboard shortcuts</h2>
    <dl class="keys">${KEYS.map(([keys, text]) => html`<div key=${keys}><dt>${keys.map((one) => html`<kbd key=${one}>${one}</kbd> `)}</dt><dd>${text}</dd></div>`)}</dl>
    <label class="check"><input type="checkbox" checked=${areEnabled()} onChange=${(event) => setShortcutsEnabled(event.target.checked)} /> Enable single-key shortcuts</label>
    <button type="button" onClick=${() => dialog.current.close()}>Close</button>
  </dialog>`;
}

/** Moves the focus without changing the address, whose fragment is the route. */
function skipToContent(event) {
  event.preventDefault();
  document.getElementById("content").focus();
}

startTheme();
render(html`<${App} />`, document.getElementById("app"));

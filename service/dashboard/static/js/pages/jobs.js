// All jobs: live, filtered, searched.
import { html, memo, useEffect, useLayoutEffect, useRef, useState } from "../../vendor/preact.js";
import { useCaller } from "../caller.js";
import { elapsed, duration, moment, number } from "../format.js";
import { EMPTY, look, more } from "../jobs_list.js";
import { useShortcuts } from "../keyboard.js";
import { Heading, Loading, useNow } from "../parts/basics.js";
import { Failure } from "../parts/problem.js";
import { isAtRest, ProgressBar, Status } from "../parts/status.js";
import { useVisible } from "../parts/window.js";
import { usePolled } from "../polling.js";
import { address, go } from "../router.js";

const LOOK_EVERY_MS = 3000;
const TYPED_FOR_MS = 300;
const AN_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const GROUPS = [
  ["", "All states"],
  ["active", "Active"],
  ["succeeded", "Succeeded"],
  ["failed", "Failed, timed out or crashed"],
  ["cancelled", "Cancelled"],
  ["stopped", "Stopped"],
];
const QUEUES = [["", "All queues"], ["short", "Short"], ["long", "Long"], ["stream", "Stream"]];

/** The page. `parameters` are those of the address: `state`, `queue`, `name`. */
export function JobsPage({ parameters }) {
  const filter = { state: parameters.state ?? "", queue: parameters.queue ?? "", name: parameters.name ?? "" };
  const about = JSON.stringify(filter);
  return html`
    <div class="page-head">
      <${Heading} title="Jobs" />
      <a class="button" href="#/new">New job</a>
    </div>
    <${Filter} filter=${filter} />
    <${JobsList} key=${about} filter=${filter} about=${about} />
  `;
}

function Filter({ filter }) {
  const [typed, setTyped] = useState(filter.name);
  const search = useRef(null);
  const timer = useRef(0);
  const asked = useRef(filter.name);
  useShortcuts({ "/": () => search.current.focus() });
  function show(change) {
    const next = { ...filter, name: typed, ...change };
    asked.current = next.name;
    go(address(["jobs"], next), { replace: true });
  }

  function type(event) {
    const name = event.target.value;
    setTyped(name);
    clearTimeout(timer.current);
    if (AN_ID.test(name.trim())) go(address(["jobs", name.trim().toLowerCase()]));
    else timer.current = setTimeout(() => show({ name }), TYPED_FOR_MS);
  }

  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => {
    // A name from elsewhere, a link or the way back, is the one to show; what is being typed is not undone by its own.
    if (filter.name !== asked.current) setTyped(filter.name);
    asked.current = filter.name;
  }, [filter.name]);
  return html`<form class="filter" role="search" onSubmit=${(event) => event.preventDefault()}>
    <label>Name begins with, or id
      <input ref=${search} type="search" value=${typed} onInput=${type} maxlength="200" spellcheck=${false} aria-keyshortcuts="/" />
    </label>
    <label>State
      <select value=${filter.state} onChange=${(event) => show({ state: event.target.value })}>
        ${GROUPS.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
      </select>
    </label>
    <label>Queue
      <select value=${filter.queue} onChange=${(event) => show({ queue: event.target.value })}>
        ${QUEUES.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
      </select>
    </label>
  </form>`;
}

/** The list that a tenant's user left last, and how far it was scrolled: whoever comes back from a job finds it so. */
let left = { about: null, tenant: null, list: EMPTY, scrolled: 0 };

function JobsList({ filter, about }) {
  const { tenant } = useCaller();
  const before = useRef(left.about === about && left.tenant === tenant ? left : { list: EMPTY, scrolled: 0 });
  const [list, setList] = useState(before.current.list);
  const [waiting, setWaiting] = useState(false);
  const [failure, setFailure] = useState(null);
  const latest = useRef(list);
  const end = useRef(null);
  const body = useRef(null);
  const shown = useVisible(body, list.jobs.length);
  latest.current = list;

  useLayoutEffect(() => {
    if (shown.isMeasured && before.current.scrolled) scrollTo(0, before.current.scrolled);
  }, [shown.isMeasured]);

  useEffect(() => {
    let scrolled = 0;
    const watch = () => (scrolled = scrollY);
    addEventListener("scroll", watch, { passive: true });
    return () => {
      removeEventListener("scroll", watch);
      left = { about, tenant, list: latest.current, scrolled };
    };
  }, []);

  const polled = usePolled(
    async (_, signal) => {
      const before = latest.current;
      const fresh = await look(before, filter, signal);
      // More was loaded meanwhile, which `fresh` has not: the next look will do.
      setList((now) => (now === before ? fresh : now));
      return true;
    },
    LOOK_EVERY_MS,
    about,
  );

  async function load() {
    if (waiting || !latest.current.next) return;
    setWaiting(true);
    try {
      const longer = await more(latest.current, filter);
      setList(longer);
      setFailure(null);
    } catch (error) {
      setFailure(error);
    } finally {
      setWaiting(false);
    }
  }

  const loading = useRef(load);
  loading.current = load;
  useEffect(() => {
    if (!end.current) return undefined;
    const observer = new IntersectionObserver(([entry]) => entry.isIntersecting && loading.current(), { rootMargin: "600px" });
    observer.observe(end.current);
    return () => observer.disconnect();
  }, [polled.value, list.next, list.jobs.length]);

  useShortcuts({ j: () => step(1), k: () => step(-1) });

  if (!polled.value && list.jobs.length === 0) return polled.error ? html`<${Failure} error=${polled.error} />` : html`<${Loading} />`;
  if (list.jobs.length === 0) return html`<${Nothing} filter=${filter} />`;
  return html`
    <${Failure} error=${polled.error} hasValue=${true} />
    <div class="jobs" data-loaded=${list.jobs.length} role="table" aria-label="Jobs, newest first" aria-rowcount=${list.next ? -1 : list.jobs.length + 1}>
      <div role="rowgroup">
        <div class="job-row job-head" role="row">
          ${["State", "Name", "Progress", "Submitted", "Took", "Rows"].map((name) => html`<span role="columnheader" key=${name}>${name}</span>`)}
        </div>
      </div>
      <div role="rowgroup" class="job-rows" ref=${body} style=${{ paddingTop: `${shown.before}px`, paddingBottom: `${shown.after}px` }}>
        ${list.jobs.slice(shown.first, shown.last).map((job, at) => html`<${Row} key=${job.id} job=${job} at=${shown.first + at} />`)}
      </div>
    </div>
    ${list.next
      ? html`<div ref=${end} class="list-end"><button type="button" class="plain" onClick=${load} disabled=${waiting}>${waiting ? "Loading …" : "Show more"}</button><${Failure} error=${failure} /></div>`
      : html`<p class="quiet small list-end">${number(list.jobs.length)} ${list.jobs.length === 1 ? "job" : "jobs"}</p>`}
  `;
}

const Row = memo(function Row({ job, at }) {
  return html`<div class="job-row" role="row" aria-rowindex=${at + 2}>
    <span role="cell"><${Status} value=${job.status} /></span>
    <span role="cell" class="job-name">
      <a class="cut" href=${address(["jobs", job.id])} title=${job.name}>${job.name}</a>
      ${job.mode !== "batch" && html`<span class="tag">${job.mode}</span>`}
    </span>
    <span role="cell">${job.error && job.status !== "CANCELLED" ? html`<span class="quiet cut" title=${job.error.detail}>${job.error.detail}</span>` : html`<${ProgressBar} job=${job} />`}</span>
    <span role="cell" class="quiet">${moment(job.submitted_at)}</span>
    <span role="cell"><${Took} job=${job} /></span>
    <span role="cell" class="numeric">${job.result ? number(job.result.rows) : ""}</span>
  </div>`;
});

function Took({ job }) {
  const now = useNow(job.started_at && !isAtRest(job));
  return html`${duration(elapsed(job.started_at, job.finished_at ?? (isAtRest(job) ? job.updated_at : null), now))}`;
}

function Nothing({ filter }) {
  if (filter.state || filter.queue || filter.name) return html`<p class="empty">No job is like that. <a href="#/jobs">Show all</a></p>`;
  return html`<div class="empty">
    <p>No job was submitted yet.</p>
    <p><a class="button" href="#/new">Write the first one</a></p>
  </div>`;
}

/** Moves the focus by one job. */
function step(by) {
  const links = [...document.querySelectorAll(".job-name a")];
  const at = links.indexOf(document.activeElement);
  links[at < 0 ? 0 : Math.min(Math.max(at + by, 0), links.length - 1)]?.focus();
}

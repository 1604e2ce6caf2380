// The list of jobs, with filters, refreshed while it is shown.
import { html, memo, useEffect, useLayoutEffect, useRef, useState } from "../../vendor/preact.js";
import { useCaller } from "../session.js";
import { elapsed, duration, moment, number } from "../format.js";
import { EMPTY, loadMore, refresh } from "../jobs_list.js";
import { useShortcuts } from "../keyboard.js";
import { Heading, Loading, useNow } from "../parts/basics.js";
import { Failure } from "../parts/problem.js";
import { isIdle, ProgressBar, Status } from "../parts/status.js";
import { useVisibleRange } from "../parts/window.js";
import { usePolled } from "../polling.js";
import { address, go } from "../router.js";

const REFRESH_MS = 3000;
const TYPING_PAUSE_MS = 300;
const JOB_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const GROUPS = [
  ["", "All states"],
  ["active", "Active"],
  ["succeeded", "Succeeded"],
  ["failed", "Failed, timed out or crashed"],
  ["cancelled", "Cancelled"],
  ["stopped", "Stopped"],
];
const QUEUES = [["", "All queues"], ["short", "Short"], ["long", "Long"], ["stream", "Stream"]];

/** The page of all jobs. `parameters` are those of the address: `state`, `queue`, `name`. */
export function JobsPage({ parameters }) {
  const filter = { state: parameters.state ?? "", queue: parameters.queue ?? "", name: parameters.name ?? "" };
  const filterKey = JSON.stringify(filter);
  return html`
    <div class="page-head">
      <${Heading} title="Jobs" />
      <a class="button" href="#/new">New job</a>
    </div>
    <${Filter} filter=${filter} />
    <${JobsList} key=${filterKey} filter=${filter} filterKey=${filterKey} />
  `;
}

function Filter({ filter }) {
  const [typed, setTyped] = useState(filter.name);
  const search = useRef(null);
  const timer = useRef(0);
  const requested = useRef(filter.name);
  useShortcuts({ "/": () => search.current.focus() });
  function show(change) {
    const next = { ...filter, name: typed, ...change };
    requested.current = next.name;
    go(address(["jobs"], next), { replace: true });
  }

  function onInput(event) {
    const name = event.target.value;
    setTyped(name);
    clearTimeout(timer.current);
    if (JOB_ID.test(name.trim())) go(address(["jobs", name.trim().toLowerCase()]));
    else timer.current = setTimeout(() => show({ name }), TYPING_PAUSE_MS);
  }

  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => {
    // A name from a link or from going back replaces the text; a name from this field must not undo further typing.
    if (filter.name !== requested.current) setTyped(filter.name);
    requested.current = filter.name;
  }, [filter.name]);
  return html`<form class="filter" role="search" onSubmit=${(event) => event.preventDefault()}>
    <label>Name prefix or job id
      <input ref=${search} type="search" value=${typed} onInput=${onInput} maxlength="200" spellcheck=${false} aria-keyshortcuts="/" />
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

/** The last list and its scroll position, restored when the user comes back from a job. */
let lastShown = { filterKey: null, tenant: null, list: EMPTY, scrolled: 0 };

function JobsList({ filter, filterKey }) {
  const { tenant } = useCaller();
  const before = useRef(lastShown.filterKey === filterKey && lastShown.tenant === tenant ? lastShown : { list: EMPTY, scrolled: 0 });
  const [list, setList] = useState(before.current.list);
  const [waiting, setWaiting] = useState(false);
  const [failure, setFailure] = useState(null);
  const latest = useRef(list);
  const end = useRef(null);
  const body = useRef(null);
  const shown = useVisibleRange(body, list.jobs.length);
  latest.current = list;

  useLayoutEffect(() => {
    if (shown.isMeasured && before.current.scrolled) scrollTo(0, before.current.scrolled);
  }, [shown.isMeasured]);

  useEffect(() => {
    let scrolled = 0;
    const onScroll = () => (scrolled = scrollY);
    addEventListener("scroll", onScroll, { passive: true });
    return () => {
      removeEventListener("scroll", onScroll);
      lastShown = { filterKey, tenant, list: latest.current, scrolled };
    };
  }, []);

  const polled = usePolled(
    async (_, signal) => {
      const before = latest.current;
      const fresh = await refresh(before, filter, signal);
      // If another page was loaded meanwhile, `fresh` lacks it: the next refresh includes it.
      setList((now) => (now === before ? fresh : now));
      return true;
    },
    REFRESH_MS,
    filterKey,
  );

  async function load() {
    if (waiting || !latest.current.next) return;
    setWaiting(true);
    try {
      const longer = await loadMore(latest.current, filter);
      setList(longer);
      setFailure(null);
    } catch (error) {
      setFailure(error);
    } finally {
      setWaiting(false);
    }
  }

  const latestLoad = useRef(load);
  latestLoad.current = load;
  useEffect(() => {
    if (!end.current) return undefined;
    const observer = new IntersectionObserver(([entry]) => entry.isIntersecting && latestLoad.current(), { rootMargin: "600px" });
    observer.observe(end.current);
    return () => observer.disconnect();
  }, [polled.value, list.next, list.jobs.length]);

  useShortcuts({ j: () => focusJob(1), k: () => focusJob(-1) });

  if (!polled.value && list.jobs.length === 0) return polled.error ? html`<${Failure} error=${polled.error} />` : html`<${Loading} />`;
  if (list.jobs.length === 0) return html`<${EmptyList} filter=${filter} />`;
  return html`
    <${Failure} error=${polled.error} hasValue=${true} />
    <div class="jobs" data-loaded=${list.jobs.length} role="table" aria-label="Jobs, newest first" aria-rowcount=${list.next ? -1 : list.jobs.length + 1}>
      <div role="rowgroup">
        <div class="job-row job-head" role="row">
          ${["State", "Name", "Progress or error", "Submitted", "Duration", "Rows"].map((name) => html`<span role="columnheader" key=${name}>${name}</span>`)}
        </div>
      </div>
      <div role="rowgroup" class="job-rows" ref=${body} style=${{ paddingTop: `${shown.before}px`, paddingBottom: `${shown.after}px` }}>
        ${list.jobs.slice(shown.first, shown.last).map((job, place) => html`<${Row} key=${job.id} job=${job} place=${shown.first + place} />`)}
      </div>
    </div>
    ${list.next
      ? html`<div ref=${end} class="list-end"><button type="button" class="plain" onClick=${load} disabled=${waiting}>${waiting ? "Loading …" : "Show more"}</button><${Failure} error=${failure} /></div>`
      : html`<p class="quiet small list-end">${number(list.jobs.length)} ${list.jobs.length === 1 ? "job" : "jobs"}</p>`}
  `;
}

const Row = memo(function Row({ job, place }) {
  return html`<div class="job-row" role="row" aria-rowindex=${place + 2}>
    <span role="cell"><${Status} value=${job.status} /></span>
    <span role="cell" class="job-name">
      <a class="cut" href=${address(["jobs", job.id])} title=${job.name}>${job.name}</a>
      ${job.mode !== "batch" && html`<span class="tag">${job.mode}</span>`}
    </span>
    <span role="cell">${job.error && job.status !== "CANCELLED" ? html`<span class="quiet cut" title=${job.error.detail}>${job.error.detail}</span>` : html`<${ProgressBar} job=${job} />`}</span>
    <span role="cell" class="quiet">${moment(job.submitted_at)}</span>
    <span role="cell"><${Duration} job=${job} /></span>
    <span role="cell" class="numeric">${job.result ? number(job.result.rows) : ""}</span>
  </div>`;
});

function Duration({ job }) {
  const now = useNow(job.started_at && !isIdle(job));
  return html`${duration(elapsed(job.started_at, job.finished_at ?? (isIdle(job) ? job.updated_at : null), now))}`;
}

function EmptyList({ filter }) {
  if (filter.state || filter.queue || filter.name) return html`<p class="empty">No matching jobs. <a href="#/jobs">Show all</a></p>`;
  return html`<div class="empty">
    <p>There are no jobs yet.</p>
    <p><a class="button" href="#/new">Submit the first job</a></p>
  </div>`;
}

/** Moves the focus by one job. */
function focusJob(offset) {
  const links = [...document.querySelectorAll(".job-name a")];
  const place = links.indexOf(document.activeElement);
  links[place < 0 ? 0 : Math.min(Math.max(place + offset, 0), links.length - 1)]?.focus();
}

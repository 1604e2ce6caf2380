// The list of jobs that were loaded, and how it is refreshed with few requests.
import { get, withQuery } from "./api.js";

const FIRST_PAGE = 50;
const NEXT_PAGE = 200;
const JOBS_PER_CHECK = 10;
const REFRESHES_PER_CHECK = 3;
const ACTIVE = ["QUEUED", "PLANNING", "RUNNING", "CANCELLING", "STOPPING"];

/** The job states of each filter. */
export const STATES = {
  active: ACTIVE,
  succeeded: ["SUCCEEDED"],
  failed: ["FAILED", "TIMED_OUT", "CRASHED"],
  cancelled: ["CANCELLED"],
  stopped: ["STOPPED"],
};

/**
 * The list before the first request: `{jobs, next, refreshes}`. `jobs` begins with the newest; `next` is the cursor of the
 * next page, undefined before the first request; `refreshes` counts the refreshes.
 */
export const EMPTY = { jobs: [], next: undefined, refreshes: 0 };

/**
 * Returns the refreshed list. Each refresh requests the newest page; every few refreshes also request some of the other
 * unfinished jobs. A job that is missing from the newest page was deleted or no longer matches the filter. A finished job
 * on a later page that was deleted stays in the list until the dashboard page is opened again. If more jobs were submitted
 * than fit on the newest page, the list starts again, because it would have a gap.
 */
export async function refresh(list, filter, signal) {
  const page = await get(query(filter, { page_size: FIRST_PAGE }), { signal });
  const fresh = new Map(page.jobs.map((job) => [job.id, job]));
  if (page.next_cursor && !list.jobs.some((job) => fresh.has(job.id))) return { ...EMPTY, jobs: page.jobs, next: page.next_cursor };
  const others = list.jobs.filter((job) => !fresh.has(job.id));
  const last = page.next_cursor ? page.jobs.at(-1) : null;
  const removed = new Set(others.filter((job) => last === null || isNewer(job, last)).map((job) => job.id));
  const turn = list.refreshes / REFRESHES_PER_CHECK;
  const toCheck = Number.isInteger(turn) ? inTurn(others.filter((job) => !job.finished && !removed.has(job.id)), turn) : [];
  await Promise.all(
    toCheck.map(async ({ id }) => {
      try {
        fresh.set(id, await get(`v1/jobs/${id}`, { signal }));
      } catch (error) {
        if (error.status !== 404) throw error;
        removed.add(id);
      }
    }),
  );
  const next = list.next === undefined ? page.next_cursor : list.next;
  return { jobs: merged(list.jobs, fresh, removed, filter), next, refreshes: list.refreshes + 1 };
}

/** Returns the list with its next page. */
export async function loadMore(list, filter, signal) {
  const page = await get(query(filter, { page_size: NEXT_PAGE, cursor: list.next }), { signal });
  const fresh = new Map(page.jobs.map((job) => [job.id, job]));
  return { ...list, jobs: merged(list.jobs, fresh, new Set(), filter), next: page.next_cursor };
}

/** Compares two jobs in the service's order. */
const isNewer = (a, b) => (a.submitted_at === b.submitted_at ? a.id > b.id : a.submitted_at > b.submitted_at);

/** Returns the jobs to check in this turn, so that each is checked after some turns. */
function inTurn(jobs, turn) {
  const from = (turn * JOBS_PER_CHECK) % Math.max(jobs.length, 1);
  return [...jobs.slice(from), ...jobs.slice(0, from)].slice(0, JOBS_PER_CHECK);
}

function query({ state, name, queue }, page) {
  return withQuery("v1/jobs", { status: STATES[state] ?? [], name, queue, ...page });
}

function merged(loaded, fresh, removed, { state }) {
  const wanted = STATES[state];
  const all = new Map(loaded.map((job) => [job.id, job]));
  for (const [id, job] of fresh) {
    const before = all.get(id);
    // The same object means that its row is not rendered again.
    if (!before || before.version !== job.version || before.waiting_for !== job.waiting_for) all.set(id, job);
  }
  return [...all.values()]
    .filter((job) => !removed.has(job.id) && (!wanted || wanted.includes(job.status)))
    .sort((a, b) => (isNewer(a, b) ? -1 : 1));
}

// The jobs seen so far, kept up to date by as few requests as it takes.
import { get, withQuery } from "./api.js";

const FIRST_PAGE = 50;
const NEXT_PAGE = 200;
const LOOKED_UP_AT_ONCE = 10;
const LOOKS_BETWEEN = 3;
const ACTIVE = ["QUEUED", "PLANNING", "RUNNING", "CANCELLING", "STOPPING"];

/** What the filter's groups of states stand for. */
export const STATES = {
  active: ACTIVE,
  succeeded: ["SUCCEEDED"],
  failed: ["FAILED", "TIMED_OUT", "CRASHED"],
  cancelled: ["CANCELLED"],
  stopped: ["STOPPED"],
};

/**
 * The list before anything was asked: `{jobs, next, looks}`; jobs newest first, `next` the cursor of what follows them,
 * `looks` how often it was brought up to date.
 */
export const EMPTY = { jobs: [], next: undefined, looks: 0 };

/**
 * The list after a look: the newest jobs and, every few looks, some of the others that had not finished when they were
 * last seen. What the newest page would show and does not was deleted, or is no longer like the filter. A finished job
 * further down that is deleted meanwhile stays until the page is opened anew. Where more have come than a look shows, the
 * list begins anew: it would have a hole.
 */
export async function look(list, filter, signal) {
  const page = await get(query(filter, { page_size: FIRST_PAGE }), { signal });
  const fresh = new Map(page.jobs.map((job) => [job.id, job]));
  if (page.next_cursor && !list.jobs.some((job) => fresh.has(job.id))) return { ...EMPTY, jobs: page.jobs, next: page.next_cursor };
  const others = list.jobs.filter((job) => !fresh.has(job.id));
  const last = page.next_cursor ? page.jobs.at(-1) : null;
  const gone = new Set(others.filter((job) => last === null || isNewer(job, last)).map((job) => job.id));
  const turn = list.looks / LOOKS_BETWEEN;
  const unsure = Number.isInteger(turn) ? inTurn(others.filter((job) => !job.finished && !gone.has(job.id)), turn) : [];
  await Promise.all(
    unsure.map(async ({ id }) => {
      try {
        fresh.set(id, await get(`v1/jobs/${id}`, { signal }));
      } catch (error) {
        if (error.status !== 404) throw error;
        gone.add(id);
      }
    }),
  );
  const next = list.next === undefined ? page.next_cursor : list.next;
  return { jobs: merged(list.jobs, fresh, gone, filter), next, looks: list.looks + 1 };
}

/** The list with the page that follows what it has. */
export async function more(list, filter, signal) {
  const page = await get(query(filter, { page_size: NEXT_PAGE, cursor: list.next }), { signal });
  const fresh = new Map(page.jobs.map((job) => [job.id, job]));
  return { ...list, jobs: merged(list.jobs, fresh, new Set(), filter), next: page.next_cursor };
}

/** As the service sorts them. */
const isNewer = (a, b) => (a.submitted_at === b.submitted_at ? a.id > b.id : a.submitted_at > b.submitted_at);

/** So many of the jobs as are looked up at once, each in its turn. */
function inTurn(jobs, turn) {
  const from = (turn * LOOKED_UP_AT_ONCE) % Math.max(jobs.length, 1);
  return [...jobs.slice(from), ...jobs.slice(0, from)].slice(0, LOOKED_UP_AT_ONCE);
}

function query({ state, name, queue }, page) {
  return withQuery("v1/jobs", { status: STATES[state] ?? [], name, queue, ...page });
}

function merged(known, fresh, gone, { state }) {
  const wanted = STATES[state];
  const all = new Map(known.map((job) => [job.id, job]));
  for (const [id, job] of fresh) {
    const before = all.get(id);
    // The same object again lets its row be as it is.
    if (!before || before.version !== job.version || before.waiting_for !== job.waiting_for) all.set(id, job);
  }
  return [...all.values()]
    .filter((job) => !gone.has(job.id) && (!wanted || wanted.includes(job.status)))
    .sort((a, b) => (isNewer(a, b) ? -1 : 1));
}

import assert from "node:assert/strict";
import { createServer } from "node:http";
import test from "node:test";
import { EMPTY, loadMore, refresh } from "../../../../service/dashboard/static/js/jobs_list.js";

const ALL = { state: "", name: "", queue: "" };
const ACTIVE = { state: "active", name: "", queue: "" };

/** Runs a service with these jobs, newest last, and `page` jobs on a page. */
async function serving(jobs, page, run) {
  const server = createServer((request, response) => {
    const url = new URL(request.url, "http://x");
    const id = url.pathname.split("/")[3];
    const states = url.searchParams.getAll("status");
    const found = jobs.filter((job) => !states.length || states.includes(job.status)).reverse();
    const from = Number(url.searchParams.get("cursor") ?? 0);
    const listed = found.slice(from, from + page);
    const next_cursor = from + page < found.length ? String(from + page) : null;
    const answer = id ? jobs.find((job) => job.id === id) : { jobs: listed, next_cursor };
    response.writeHead(answer ? 200 : 404, { "Content-Type": "application/json" }).end(JSON.stringify(answer ?? { code: "job_not_found" }));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  globalThis.document = { baseURI: `http://127.0.0.1:${server.address().port}/` };
  globalThis.sessionStorage = { getItem: () => null };
  try {
    await run();
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

const FINISHED = ["SUCCEEDED", "FAILED"];
const job = (number, status = "RUNNING") => ({ finished: FINISHED.includes(status), id: String(number).padStart(4, "0"), status, version: 1, waiting_for: null, submitted_at: String(number).padStart(4, "0") });
const ids = (list) => list.jobs.map(({ id }) => Number(id));

test("a job that is no longer active leaves the list of active jobs", async () => {
  const jobs = [job(1), job(2)];
  await serving(jobs, 50, async () => {
    const list = await refresh(EMPTY, ACTIVE);
    assert.deepEqual(ids(list), [2, 1]);
    jobs[0] = { ...jobs[0], status: "SUCCEEDED", version: 2 };
    assert.deepEqual(ids(await refresh(list, ACTIVE)), [2]);
  });
});

test("loaded jobs stay in the list and are refreshed", async () => {
  const jobs = [1, 2, 3, 4, 5].map((number) => job(number));
  await serving(jobs, 2, async () => {
    let list = await loadMore(await refresh(EMPTY, ALL), ALL);
    assert.deepEqual(ids(list), [5, 4, 3, 2]);
    jobs[1] = { ...jobs[1], status: "FAILED", finished: true, version: 2 };
    jobs.push(job(6));
    list = await refresh(list, ALL);
    assert.deepEqual(ids(list), [6, 5, 4, 3, 2]);
    assert.equal(list.jobs.at(-1).status, "FAILED");
  });
});

test("a list that would have a gap starts again", async () => {
  const jobs = [1, 2, 3].map((number) => job(number, "SUCCEEDED"));
  await serving(jobs, 2, async () => {
    const list = await refresh(EMPTY, ALL);
    jobs.push(job(4, "SUCCEEDED"), job(5, "SUCCEEDED"), job(6, "SUCCEEDED"));
    let fresh = await refresh(list, ALL);
    assert.deepEqual(ids(fresh), [6, 5]);
    while (fresh.next) fresh = await loadMore(fresh, ALL);
    assert.deepEqual(ids(fresh), [6, 5, 4, 3, 2, 1]);
  });
});

test("many active jobs are refreshed in turns", async () => {
  const jobs = Array.from({ length: 40 }, (_, place) => job(place + 1));
  await serving(jobs, 5, async () => {
    let list = await refresh(EMPTY, ALL);
    while (list.next) list = await loadMore(list, ALL);
    for (const [place, one] of jobs.entries()) jobs[place] = { ...one, status: "FAILED", finished: true, version: 2 };
    for (let count = 0; count < 12; count += 1) list = await refresh(list, ALL);
    assert.deepEqual(list.jobs.filter((one) => one.status !== "FAILED"), []);
  });
});

test("a resumed job leaves the list of stopped jobs, and a deleted job leaves any list", async () => {
  const jobs = [1, 2, 3].map((number) => job(number, "STOPPED"));
  const stopped = { ...ALL, state: "stopped" };
  await serving(jobs, 2, async () => {
    let list = await loadMore(await refresh(EMPTY, stopped), stopped);
    assert.deepEqual(ids(list), [3, 2, 1]);
    jobs[2] = { ...jobs[2], status: "RUNNING", version: 2 };
    list = await refresh(list, stopped);
    assert.deepEqual(ids(list), [2, 1]);
    jobs.splice(1, 1);
    assert.deepEqual(ids(await refresh(list, stopped)), [1]);
  });
});

test("a resumed job on a later page is refreshed", async () => {
  const jobs = [1, 2, 3, 4].map((number) => job(number, number === 1 ? "STOPPED" : "SUCCEEDED"));
  await serving(jobs, 2, async () => {
    const list = await loadMore(await refresh(EMPTY, ALL), ALL);
    jobs[0] = { ...jobs[0], status: "RUNNING", version: 2 };
    assert.equal((await refresh(list, ALL)).jobs.at(-1).status, "RUNNING");
  });
});

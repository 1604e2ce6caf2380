/**
 * A program with the generated types and openapi-fetch: from a job to the pages of its result, with problems, which the
 * compiler narrows to `Problem`.
 *
 * Arguments: the service's address and a key. Prints its results as JSON.
 */
import createClient from "openapi-fetch";
import type { components, paths } from "./evenkeel";

type Problem = components["schemas"]["Problem"];
type Job = components["schemas"]["Job"];
type ResultPage = components["schemas"]["ResultPage"];

declare const process: { argv: string[]; exitCode: number };

const [address, key] = process.argv.slice(2) as [string, string];
const headers = { Accept: "application/json" };
const client = createClient<paths>({ baseUrl: address, headers: { ...headers, Authorization: `Bearer ${key}` } });
const stranger = createClient<paths>({ baseUrl: address, headers });

const MANUFACTURERS = {
  name: "manufacturers",
  tables: { f: { format: "parquet", path: "flights/" }, p: { format: "parquet", path: "planes/" } },
  sql:
    "SELECT p.manufacturer, COUNT(*) AS flights FROM f JOIN p ON f.tailnum = p.tailnum " +
    "GROUP BY p.manufacturer ORDER BY flights DESC",
  settings: { agg_phase: "TWO_PHASE" },
} satisfies components["schemas"]["JobSpec"];

/** Returns the response, or throws an error that names the problem. */
function done<T>({ data, error }: { data?: T; error?: Problem }): T {
  if (error !== undefined) throw new Error(`${error.code}: ${error.detail}`);
  if (data === undefined) throw new Error("no body");
  return data;
}

async function finished(id: string): Promise<Job> {
  for (let waits = 0; waits < 60; waits++) {
    const job = done(
      await client.GET("/v1/jobs/{job_id}", { params: { path: { job_id: id }, header: { prefer: "wait=2" } } }),
    );
    if (job.finished) return job;
  }
  throw new Error(`timed out waiting for ${id}`);
}

/** Returns a page. Other formats are texts, so the compiler requires a check. */
async function page(id: string, cursor: string): Promise<ResultPage> {
  const read = done(
    await client.GET("/v1/jobs/{job_id}/result", { params: { path: { job_id: id }, query: { cursor, page_size: 20 } } }),
  );
  if (typeof read === "string") throw new Error("a page was asked for");
  return read;
}

async function rows(id: string): Promise<unknown[][][]> {
  const pages: unknown[][][] = [];
  let cursor = "";
  do {
    const read = await page(id, cursor);
    pages.push(read.rows);
    cursor = read.next_cursor;
  } while (cursor);
  return pages;
}

async function csv(id: string): Promise<string> {
  const { data } = await client.GET("/v1/jobs/{job_id}/result", {
    params: { path: { job_id: id } },
    headers: { Accept: "text/csv" },
    parseAs: "text",
  });
  return String(data);
}

/** Returns the code of a problem, as the compiler checks. */
function codeOf(answer: { error?: Problem; response: Response }): [string, number] {
  if (answer.error === undefined) throw new Error(`no problem, but ${answer.response.status}`);
  const problem: Problem = answer.error;
  if (problem.status !== answer.response.status) throw new Error(`${problem.code}: ${problem.status}`);
  return [problem.code, problem.status];
}

async function provoked(job: string): Promise<[string, number][]> {
  const unknown = { path: { job_id: "00000000-0000-4000-8000-000000000000" } };
  const known = { path: { job_id: job } };
  const clicks = { path: { name: "clicks" } };
  const another = { ...MANUFACTURERS, name: "another" };
  await client.PUT("/v1/streams/{name}", { params: clicks, body: { schema: "uid BIGINT" } });
  return [
    codeOf(await stranger.GET("/v1/me")),
    codeOf(await client.GET("/v1/jobs", { params: { query: { page_size: 0 } } })),
    codeOf(await client.GET("/v1/jobs", { params: { query: { cursor: "of another list" } } })),
    codeOf(await client.GET("/v1/jobs/{job_id}", { params: unknown })),
    codeOf(await client.POST("/v1/jobs", { body: { ...MANUFACTURERS, sql: "SELECT COUNT(f.carier) AS n FROM f" } })),
    codeOf(await client.POST("/v1/jobs", { body: another, params: { header: { "idempotency-key": "first" } } })),
    codeOf(await client.POST("/v1/jobs/{job_id}/cancel", { params: known })),
    codeOf(await client.POST("/v1/jobs/{job_id}/stop", { params: known })),
    codeOf(await client.GET("/v1/jobs/{job_id}/result", { params: known, headers: { Accept: "image/png" } })),
    codeOf(await client.PUT("/v1/streams/{name}", { params: clicks, body: { schema: "uid STRING" } })),
    codeOf(await client.GET("/v1/streams/{name}", { params: { path: { name: "views" } } })),
    codeOf(
      await client.POST("/v1/streams/{name}/rows", {
        params: { ...clicks, query: { batch_id: "1" } },
        body: '{"uid": "one"}\n',
        bodySerializer: (body) => body,
        headers: { "Content-Type": "application/x-ndjson" },
      }),
    ),
    codeOf(await client.GET("/v1/workers/{worker_id}", { params: { path: { worker_id: "node-9-1-000000" } } })),
    codeOf(await client.DELETE("/v1/keys/{key_id}", { params: { path: { key_id: "aaaaaaaaaaaaaaaa" } } })),
  ];
}

async function main(): Promise<void> {
  const accepted = await client.POST("/v1/jobs", {
    body: MANUFACTURERS,
    params: { header: { "idempotency-key": "first" } },
  });
  const { id } = done(accepted);
  const job = await finished(id);
  const params = { path: { job_id: id } };
  const plan = done(await client.GET("/v1/jobs/{job_id}/plan", { params }));
  const metrics = done(await client.GET("/v1/jobs/{job_id}/metrics", { params }));
  const events = done(await client.GET("/v1/jobs/{job_id}/events", { params }));
  if (typeof events === "string") throw new Error("a page was asked for");
  console.log(
    JSON.stringify({
      location: accepted.response.headers.get("Location"),
      id,
      status: job.status,
      pages: await rows(id),
      csv: (await csv(id)).split("\n").slice(0, 2),
      fired: plan.rules.filter((rule) => rule.outcome === "fired").map((rule) => rule.rule),
      advice: metrics.skew.advice,
      events: events.events.map((event) => event.type),
      problems: await provoked(id),
    }),
  );
}

main().catch((error: unknown) => {
  console.error(error);
  process.exitCode = 1;
});

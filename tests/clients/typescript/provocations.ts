/**
 * Provokes each documented problem with the generated types and openapi-fetch.
 *
 * Arguments: the service's address, the address of acting.py, the operator's key, and codes. Prints the problems by code
 * as JSON.
 */
import createClient, { type Client } from "openapi-fetch";
import type { components, paths } from "./evenkeel";

type Problem = components["schemas"]["Problem"];
type JobSpec = components["schemas"]["JobSpec"];

/** The compiler knows that the error of each response is a problem. */
type Answer = { error?: Problem; response: Response };

declare const process: { argv: string[]; exitCode: number };

const [address, acts, key, ...codes] = process.argv.slice(2) as [string, string, string, ...string[]];
const TRIES = 5;
const SCHEMA = "uid BIGINT, page STRING";
const ORDERS = {
  tables: { o: { format: "parquet", path: "orders/" } },
  sql: "SELECT o.category, COUNT(*) AS n FROM o GROUP BY o.category",
} satisfies JobSpec;
const CLICKS = {
  mode: "incremental",
  tables: { c: { format: "stream", stream: "clicks" } },
  sql: "SELECT c.page, COUNT(*) AS n FROM c GROUP BY c.page",
} satisfies JobSpec;
const clicks = { path: { name: "clicks" } };
const unknown = { path: { job_id: "00000000-0000-4000-8000-000000000000" } };
const admin = clientOf(key);

function clientOf(shown: string, headers: Record<string, string> = {}): Client<paths> {
  return createClient<paths>({
    baseUrl: address,
    headers: { Accept: "application/json", Authorization: `Bearer ${shown}`, ...headers },
  });
}

/** Changes the service and returns the result. */
async function act(name: string, argument = ""): Promise<string> {
  const answer = await fetch(`${acts}/${name}`, { method: "POST", body: argument });
  const told = await answer.text();
  if (!answer.ok) throw new Error(`${name}: ${told}`);
  return told;
}

/** Creates a client of a new tenant. */
async function newcomer(headers: Record<string, string> = {}): Promise<Client<paths>> {
  return clientOf(await act("newcomer"), headers);
}

async function submitted(client: Client<paths>, body: JobSpec): Promise<string> {
  const { data, error } = await client.POST("/v1/jobs", { body });
  if (error !== undefined) throw new Error(`${error.code}: ${error.detail}`);
  return data.id;
}

/** Runs a job until it has a status and returns its id. */
async function ran(body: JobSpec, status: string): Promise<string> {
  const id = await submitted(admin, body);
  for (let waits = 0; waits < 60; waits++) {
    const params = { path: { job_id: id }, header: { prefer: "wait=2" } };
    const { data } = await admin.GET("/v1/jobs/{job_id}", { params });
    if (data?.status === status) return id;
    if (data?.finished) throw new Error(`${id} is ${data.status}`);
  }
  throw new Error(`timed out waiting for ${id}`);
}

/** Creates a client whose tenant has a stream. */
async function withClicks(): Promise<Client<paths>> {
  const client = await newcomer();
  await client.PUT("/v1/streams/{name}", { params: clicks, body: { schema: SCHEMA } });
  return client;
}

function posted(client: Client<paths>, rows: string, batch_id = "1"): Promise<Answer> {
  return client.POST("/v1/streams/{name}/rows", {
    params: { ...clicks, query: { batch_id } },
    body: rows,
    bodySerializer: (body) => body,
    headers: { "Content-Type": "application/x-ndjson" },
  });
}

/** Returns the response to a body that the types do not allow. */
async function sent(text: string, media_type = "application/json"): Promise<Answer> {
  const client = await newcomer({ "Content-Type": media_type });
  return client.POST("/v1/jobs", { body: ORDERS, bodySerializer: () => text });
}

/** Requests two concurrent explanations with a limit of one and without a worker. */
async function explainedTwice(code: string): Promise<Answer> {
  const client = await newcomer();
  const answers = await Promise.all([1, 2].map(() => client.POST("/v1/explain", { body: ORDERS })));
  const found = answers.find(({ error }) => error?.code === code);
  if (found === undefined) throw new Error(`no ${code} among ${answers.map(({ error }) => error?.code).join()}`);
  return found;
}

const PROVOCATIONS: Record<string, () => Promise<Answer>> = {
  not_ready: () => admin.GET("/readyz"),
  unauthenticated: () => clientOf("ek_unheard_of").GET("/v1/me"),
  missing_scope: async () => clientOf(await act("reader")).POST("/v1/jobs", { body: ORDERS }),
  origin_not_allowed: async () =>
    (await newcomer({ Origin: "https://elsewhere.example" })).POST("/v1/jobs/{job_id}/cancel", { params: unknown }),
  invalid_request: async () => (await newcomer()).GET("/v1/jobs", { params: { query: { page_size: 0 } } }),
  malformed_json: () => sent('{"sql": '),
  duplicate_key: () => sent('{"name": "a", "name": "b"}'),
  nesting_too_deep: () => sent(`${'{"a":'.repeat(200)}1${"}".repeat(200)}`),
  unsupported_media_type: () => sent("sql=SELECT", "application/x-www-form-urlencoded"),
  body_too_large: async () =>
    (await newcomer()).POST("/v1/jobs", { body: { ...ORDERS, sql: `SELECT '${"x".repeat(50_000)}' AS n FROM o` } }),
  unknown_column: async () =>
    (await newcomer()).POST("/v1/jobs", { body: { ...ORDERS, sql: "SELECT COUNT(DISTINCT o.categry) AS n FROM o" } }),
  idempotency_key_reused: async () => {
    const client = await newcomer();
    const params = { header: { "idempotency-key": "nightly-2026-01-31" } };
    await client.POST("/v1/jobs", { body: ORDERS, params });
    return client.POST("/v1/jobs", { body: { ...ORDERS, name: "another" }, params });
  },
  too_many_jobs: async () => {
    const client = await newcomer();
    for (;;) {
      const answer = await client.POST("/v1/jobs", { body: ORDERS });
      if (answer.error !== undefined) return answer;
    }
  },
  internal_error: async () => {
    const client = await newcomer();
    const id = await submitted(client, ORDERS);
    await act("spoil", id);
    return client.GET("/v1/jobs/{job_id}", { params: { path: { job_id: id } } });
  },
  storage_unavailable: async () =>
    (await newcomer()).POST("/v1/jobs", {
      body: { ...ORDERS, tables: { o: { format: "parquet", path: "s3a://flights/2013/" } } },
    }),
  database_unavailable: async () => {
    const client = await newcomer();
    await act("stick");
    try {
      return await client.POST("/v1/jobs", { body: ORDERS });
    } finally {
      await act("unstick");
    }
  },
  invalid_cursor: async () => (await newcomer()).GET("/v1/jobs", { params: { query: { cursor: "of another list" } } }),
  invalid_lookup: async () =>
    (await newcomer()).GET("/v1/jobs/{job_id}/result", { params: { ...unknown, query: { key: "all" } } }),
  job_not_found: async () => (await newcomer()).GET("/v1/jobs/{job_id}", { params: unknown }),
  job_not_finished: async () => {
    const client = await newcomer();
    const id = await submitted(client, ORDERS);
    return client.DELETE("/v1/jobs/{job_id}", { params: { path: { job_id: id } } });
  },
  job_state_unknown: async () => {
    const client = await newcomer();
    const id = await submitted(client, ORDERS);
    await act("move_on", id);
    return client.DELETE("/v1/jobs/{job_id}", { params: { path: { job_id: id } } });
  },
  not_a_stream: async () => {
    const client = await newcomer();
    const id = await submitted(client, ORDERS);
    return client.POST("/v1/jobs/{job_id}/stop", { params: { path: { job_id: id } } });
  },
  not_stopped: async () => {
    const client = await withClicks();
    const id = await submitted(client, CLICKS);
    return client.POST("/v1/jobs/{job_id}/resume", { params: { path: { job_id: id } }, body: {} });
  },
  result_not_ready: async () => {
    const client = await newcomer();
    const id = await submitted(client, ORDERS);
    return client.GET("/v1/jobs/{job_id}/result", { params: { path: { job_id: id } } });
  },
  not_acceptable: async () =>
    (await newcomer({ Accept: "application/vnd.ms-excel" })).GET("/v1/jobs/{job_id}/result", { params: unknown }),
  plan_not_ready: async () => {
    const client = await newcomer();
    const id = await submitted(client, ORDERS);
    return client.GET("/v1/jobs/{job_id}/plan", { params: { path: { job_id: id } } });
  },
  metrics_not_ready: async () => {
    const client = await newcomer();
    const id = await submitted(client, ORDERS);
    return client.GET("/v1/jobs/{job_id}/metrics", { params: { path: { job_id: id } } });
  },
  worker_unavailable: () => explainedTwice("worker_unavailable"),
  too_many_explanations: () => explainedTwice("too_many_explanations"),
  stream_not_found: async () => (await newcomer()).GET("/v1/streams/{name}", { params: clicks }),
  stream_differs: async () =>
    (await withClicks()).PUT("/v1/streams/{name}", { params: clicks, body: { schema: "uid STRING, page STRING" } }),
  stream_in_use: async () => {
    const client = await withClicks();
    await submitted(client, CLICKS);
    return client.DELETE("/v1/streams/{name}", { params: clicks });
  },
  too_many_streams: async () => {
    const client = await withClicks();
    await client.PUT("/v1/streams/{name}", { params: { path: { name: "views" } }, body: { schema: SCHEMA } });
    return client.PUT("/v1/streams/{name}", { params: { path: { name: "orders" } }, body: { schema: SCHEMA } });
  },
  invalid_rows: async () =>
    posted(await withClicks(), '{"uid": 1, "page": "/"}\n{"uid": "two", "page": "/cart"}\n'),
  batch_id_reused: async () => {
    const client = await withClicks();
    await posted(client, '{"uid": 1, "page": "/"}\n');
    return posted(client, '{"uid": 2, "page": "/"}\n');
  },
  too_many_posted_bytes: async () => {
    const client = await withClicks();
    const rows = Array.from({ length: 1000 }, (_, uid) => `{"uid": ${uid}, "page": "/${uid * uid}"}\n`).join("");
    await posted(client, rows);
    return posted(client, rows, "2");
  },
  unknown_worker: async () =>
    (await newcomer()).GET("/v1/workers/{worker_id}", { params: { path: { worker_id: "node-9-1-000000" } } }),
  key_not_found: () => admin.DELETE("/v1/keys/{key_id}", { params: { path: { key_id: "a".repeat(16) } } }),
  last_admin_key: async () => {
    const me = (await admin.GET("/v1/me")).data;
    const keys = (await admin.GET("/v1/keys")).data;
    if (!me?.key_id || !keys) throw new Error("nobody is signed in");
    for (const other of keys.keys) {
      if (other.active && other.id !== me.key_id) {
        await admin.DELETE("/v1/keys/{key_id}", { params: { path: { key_id: other.id } } });
      }
    }
    return admin.DELETE("/v1/keys/{key_id}", { params: { path: { key_id: me.key_id } } });
  },
  worker_silent: async () => {
    const worker_id = await act("silent_worker");
    return admin.POST("/v1/workers/{worker_id}/drain", { params: { path: { worker_id } } });
  },
  stopping: async () => {
    const client = await newcomer();
    for (let tries = 0; tries < TRIES; tries++) {
      // Requests that wait for a job get a response then; this one has none.
      const asked = client.POST("/v1/explain", { body: ORDERS }).catch(() => null);
      await act("stop");
      const answer = await asked;
      await act("start_again");
      // Otherwise, it arrived after the API had stopped listening.
      if (answer !== null) return answer;
    }
    throw new Error(`in ${TRIES} tries, no request was under way when the API stopped`);
  },
  job_already_finished: async () => {
    const id = await ran(ORDERS, "SUCCEEDED");
    return admin.POST("/v1/jobs/{job_id}/cancel", { params: { path: { job_id: id } } });
  },
  result_missing: async () => {
    const id = await ran(ORDERS, "SUCCEEDED");
    await act("lose", id);
    return admin.GET("/v1/jobs/{job_id}/result", { params: { path: { job_id: id } } });
  },
  state_not_compatible: async () => {
    await admin.PUT("/v1/streams/{name}", { params: clicks, body: { schema: SCHEMA } });
    const id = await ran(CLICKS, "STOPPED");
    return admin.PATCH("/v1/jobs/{job_id}/settings", {
      params: { path: { job_id: id } },
      body: { state: { partitions: 7 } },
    });
  },
};

async function met(code: string): Promise<unknown> {
  const provoke = PROVOCATIONS[code];
  if (provoke === undefined) return { failure: "nothing provokes it" };
  try {
    const { error, response } = await provoke();
    return { status: response.status, problem: error ?? null };
  } catch (failure) {
    return { failure: String(failure) };
  }
}

async function main(): Promise<void> {
  const found: Record<string, unknown> = {};
  for (const code of codes) found[code] = await met(code);
  console.log(JSON.stringify(found));
}

main().catch((error: unknown) => {
  console.error(error);
  process.exitCode = 1;
});

// The page of the workers and of the service's readiness.
import { html, useState } from "../../vendor/preact.js";
import { ApiError, change, get } from "../api.js";
import { useCaller } from "../session.js";
import { ago, moment, number, size } from "../format.js";
import { Confirm, Facts, Heading, Loading, useNow } from "../parts/basics.js";
import { Failure } from "../parts/problem.js";
import { Status } from "../parts/status.js";
import { usePolled } from "../polling.js";
import { address } from "../router.js";

const INTERVAL_MS = 5000;

/** The page "Workers". */
export function WorkersPage() {
  const { value, error, refresh } = usePolled(
    async (before, signal) => {
      const [workers, readiness] = await Promise.allSettled([get("v1/workers", { signal }), loadReadiness(signal)]);
      if (readiness.status === "rejected") throw readiness.reason;
      return { workers: workers.value?.workers ?? before?.workers, failure: workers.reason, readiness: readiness.value };
    },
    INTERVAL_MS,
    "workers",
  );
  if (!value) return html`<${Heading} title="Workers" />${error ? html`<${Failure} error=${error} />` : html`<${Loading} />`}`;
  return html`
    <div class="page-head"><${Heading} title="Workers" /></div>
    <${Failure} error=${error} hasValue=${true} />
    <${Health} readiness=${value.readiness} />
    <${Failure} error=${value.failure} hasValue=${value.workers} />
    ${value.workers?.length === 0 && html`<p class="empty">No worker has reported recently. Start one with <code>evenkeel worker</code>; until then, jobs stay queued.</p>`}
    ${value.workers?.map((worker) => html`<${Worker} key=${worker.id} worker=${worker} onChanged=${refresh} />`)}
  `;
}

/** Returns the readiness. If the service is not ready, the reasons in its problem are the warnings. */
async function loadReadiness(signal) {
  try {
    return await get("readyz", { signal });
  } catch (error) {
    if (error instanceof ApiError && error.status === 503) return { status: "not ready", workers: 0, warnings: error.problem.errors?.length ? error.problem.errors : [{ code: error.code, detail: error.message }] };
    throw error;
  }
}

function Health({ readiness }) {
  const isReady = readiness.status === "ready";
  return html`<section class=${`verdict${isReady ? "" : " is-skewed"}`}>
    <h2>${isReady ? "Ready to accept jobs" : "Not ready"}</h2>
    ${!isReady && html`<p class="lead">New jobs stay queued or are refused.</p>`}
    <ul>${(readiness.warnings ?? []).map((one) => html`<li key=${one.code + one.detail}>${one.detail}</li>`)}</ul>
  </section>`;
}

function Worker({ worker, onChanged }) {
  const { isAdmin } = useCaller();
  const now = useNow(true);
  const [isAsking, setIsAsking] = useState(false);
  const [failure, setFailure] = useState(null);

  async function drain(isConfirmed) {
    setIsAsking(false);
    if (!isConfirmed) return;
    try {
      await change("POST", `v1/workers/${encodeURIComponent(worker.id)}/drain`);
      onChanged();
    } catch (error) {
      setFailure(error);
    }
  }

  return html`<section class="card">
    <div class="section-head">
      <h2>${worker.host ?? worker.id} <${Status} value=${worker.status} /></h2>
      ${isAdmin && ["READY", "STARTING", "UNAVAILABLE"].includes(worker.status) && html`<button type="button" class="plain small" onClick=${() => setIsAsking(true)}>Drain</button>`}
    </div>
    ${worker.unavailable_reason && html`<p class="field-error">${worker.unavailable_reason}</p>`}
    <${Facts}
      entries=${[
        ["Id", html`<code>${worker.id}</code>`],
        ["Cluster", html`<code>${worker.cluster}</code>`],
        ["Application", worker.app_id],
        ["Slots", number(worker.slots)],
        ["Max concurrent jobs", number(worker.concurrency)],
        ["Queues", worker.queues.join(", ")],
        ["Memory", size(worker.memory_bytes)],
        ["Version", worker.version],
        ["Started", moment(worker.started_at)],
        ["Last heartbeat", ago(worker.heartbeat_at, now)],
      ]}
    />
    ${worker.jobs.length + worker.other_jobs === 0
      ? html`<p class="quiet">Idle</p>`
      : html`<ul>
          ${worker.jobs.map((job) => html`<li key=${job.id}><a href=${address(["jobs", job.id])}>${job.name}</a></li>`)}
          ${worker.other_jobs > 0 && html`<li class="quiet">${number(worker.other_jobs)} more (jobs of other tenants, or explanations)</li>`}
        </ul>`}
    <${Failure} error=${failure} />
    ${isAsking && html`<${Confirm} question=${`Drain ${worker.id}? It takes no new jobs and exits when its running jobs have ended.`} action="Drain" onAnswer=${drain} />`}
  </section>`;
}

// The page of one job: its state, its actions, and sections with its reports.
import { html, useState } from "../../vendor/preact.js";
import { change, getIfChanged } from "../api.js";
import { duration, elapsed, moment, number, size } from "../format.js";
import { OverviewSection } from "../job/overview.js";
import { PlanSection } from "../job/plan.js";
import { ResultSection } from "../job/result.js";
import { SkewSection } from "../job/skew.js";
import { StreamSection } from "../job/stream.js";
import { Confirm, Facts, Heading, Listing, Loading, useIsMounted, useNow } from "../parts/basics.js";
import { Failure, Problem } from "../parts/problem.js";
import { isIdle, ProgressBar, Status } from "../parts/status.js";
import { usePolled } from "../polling.js";
import { address, go } from "../router.js";
import { useCaller } from "../session.js";

const LIVE_MS = 1500;
const IDLE_MS = 15_000;
const SECTIONS = [
  ["", "Overview", () => true],
  ["plan", "Plan", () => true],
  ["skew", "Skew", (job) => job.mode === "batch"],
  ["stream", "Stream", (job) => job.mode !== "batch"],
  ["result", "Result", () => true],
  ["spec", "Specification", () => true],
];
const BODIES = {
  "": OverviewSection,
  plan: PlanSection,
  skew: SkewSection,
  stream: StreamSection,
  result: ResultSection,
  spec: SpecSection,
};

/** The page of one job with one of its sections. */
export function JobPage({ id, section = "" }) {
  const [intervalMs, setIntervalMs] = useState(LIVE_MS);
  const { value: known, error, refresh } = usePolled(
    async (before, signal) => {
      const now = await getIfChanged(`v1/jobs/${encodeURIComponent(id)}`, before, { signal });
      setIntervalMs(now.value.finished ? 0 : isIdle(now.value) ? IDLE_MS : LIVE_MS);
      return now;
    },
    intervalMs,
    id,
  );
  if (!known) return error ? html`<${Heading} title="Job" /><${Failure} error=${error} />` : html`<${Loading} />`;
  const job = known.value;
  const Body = Object.hasOwn(BODIES, section) ? BODIES[section] : null;
  if (!Body) return html`<${Heading} title="No such page" /><p><a href=${address(["jobs", id])}>Back to the job</a></p>`;
  return html`
    <${JobHead} job=${job} onChanged=${refresh} />
    <${Failure} error=${error} hasValue=${true} />
    <nav class="sections" aria-label="Sections of this job">
      ${SECTIONS.filter(([, , appliesTo]) => appliesTo(job)).map(
        ([name, text]) => html`<a key=${name} href=${address(["jobs", id, name].filter(Boolean))} aria-current=${name === section ? "page" : undefined}>${text}</a>`,
      )}
    </nav>
    <${Body} key=${`${id}/${section}`} job=${job} onChanged=${refresh} />
  `;
}

/** The section "Specification": the job as it was submitted and stored. */
function SpecSection({ job }) {
  return html`<section>
    <h2>Specification</h2>
    <${Facts} entries=${[["Request", job.request_id && html`<code>${job.request_id}</code>`]]} />
    <${Listing} text=${JSON.stringify(job.spec, null, 2)} label="Specification of the job" />
  </section>`;
}

function JobHead({ job, onChanged }) {
  const now = useNow(!isIdle(job));
  const elapsedMs = elapsed(job.started_at, job.finished_at ?? (isIdle(job) ? job.updated_at : null), now);
  return html`
    <p class="crumbs"><a href="#/jobs">Jobs</a></p>
    <div class="page-head">
      <${Heading} title=${job.name} />
      <${Actions} job=${job} onChanged=${onChanged} />
    </div>
    <div class="job-state">
      <span aria-live="polite"><${Status} value=${job.status} /></span>
      <${ProgressBar} job=${job} />
    </div>
    <${Facts}
      entries=${[
        ["Id", html`<code>${job.id}</code>`],
        ["Mode", job.mode],
        ["Queue", job.queue],
        ["Attempts", job.attempts > 1 && job.attempts],
        ["Submitted", moment(job.submitted_at)],
        ["Duration", elapsedMs !== null && duration(elapsedMs)],
        ["Next attempt", job.next_run_at && moment(job.next_run_at)],
        ["Result", job.result && `${number(job.result.rows)} ${job.result.rows === 1 ? "row" : "rows"}, ${size(job.result.bytes)}`],
      ]}
    />
    ${job.error && (job.status === "CANCELLED" ? html`<p class="quiet">${job.error.detail}</p>` : html`<${Problem} problem=${job.error} />`)}
  `;
}

function Actions({ job, onChanged }) {
  const { maySubmit } = useCaller();
  const [pending, setPending] = useState(null);
  const [failure, setFailure] = useState(null);
  const [busy, setBusy] = useState(false);
  const isMounted = useIsMounted();
  const path = `v1/jobs/${job.id}`;

  async function act(method, to, body) {
    setBusy(true);
    try {
      await change(method, to, { body });
      setFailure(null);
      if (method !== "DELETE") onChanged();
      else if (isMounted()) go("#/jobs");
    } catch (error) {
      setFailure(error);
    } finally {
      setBusy(false);
    }
  }

  function onAnswer(isConfirmed) {
    const { method, to, body } = pending;
    setPending(null);
    if (!isConfirmed) return;
    // The button that was pressed is now disabled or removed.
    document.querySelector("h1").focus();
    act(method, to, body);
  }

  if (!maySubmit) return null;
  const streams = job.mode !== "batch";
  const live = !job.finished && !["CANCELLING", "STOPPING"].includes(job.status);
  return html`<div class="actions">
    <div class="buttons">
      <a class="button plain" href=${address(["new"], { from: job.id })}>Edit as new</a>
      ${streams && live && job.status !== "STOPPED" && html`<button type="button" class="plain" disabled=${busy} onClick=${() => act("POST", `${path}/stop`)}>Stop</button>`}
      ${streams && job.status === "STOPPED" && html`<button type="button" disabled=${busy} onClick=${() => act("POST", `${path}/resume`, {})}>Resume</button>`}
      ${streams && job.status === "STOPPED" && html`<button type="button" class="plain" disabled=${busy} onClick=${() => setPending({ method: "POST", to: `${path}/resume`, body: { from: "scratch" }, question: `Resume “${job.name}” from scratch? Its state and result are deleted, and all input that still exists is read again.`, action: "Start from scratch" })}>Resume from scratch</button>`}
      ${live && html`<button type="button" class="plain" disabled=${busy} onClick=${() => setPending({ method: "POST", to: `${path}/cancel`, question: `Cancel “${job.name}”? Its work so far is lost.`, action: "Cancel the job" })}>Cancel</button>`}
      ${isIdle(job) && html`<button type="button" class="plain" disabled=${busy} onClick=${() => setPending({ method: "DELETE", to: path, question: `Delete “${job.name}” with its result, plan and metrics?`, action: "Delete" })}>Delete</button>`}
    </div>
    ${failure && html`<${Failure} error=${failure} />`}
    ${pending && html`<${Confirm} question=${pending.question} action=${pending.action} onAnswer=${onAnswer} />`}
  </div>`;
}

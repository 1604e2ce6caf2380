// One job: what it is, how it stands, and what was found out about it, each on a page of its own.
import { html, useState } from "../../vendor/preact.js";
import { change, getUnlessKnown } from "../api.js";
import { duration, elapsed, moment, number, size } from "../format.js";
import { OverviewSection } from "../job/overview.js";
import { PlanSection } from "../job/plan.js";
import { ResultSection } from "../job/result.js";
import { SkewSection } from "../job/skew.js";
import { SpecSection } from "../job/spec.js";
import { StreamSection } from "../job/stream.js";
import { Confirm, Facts, Heading, Loading, useIsHere, useNow } from "../parts/basics.js";
import { Failure, Problem } from "../parts/problem.js";
import { isAtRest, ProgressBar, Status } from "../parts/status.js";
import { usePolled } from "../polling.js";
import { address, go } from "../router.js";
import { useCaller } from "../caller.js";

const LIVE_MS = 1500;
const AT_REST_MS = 15_000;
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

/** The page of one job, at one of its sections. */
export function JobPage({ id, section = "" }) {
  const [pace, setPace] = useState(LIVE_MS);
  const { value: known, error, refresh } = usePolled(
    async (before, signal) => {
      const now = await getUnlessKnown(`v1/jobs/${encodeURIComponent(id)}`, before, { signal });
      setPace(now.value.finished ? 0 : isAtRest(now.value) ? AT_REST_MS : LIVE_MS);
      return now;
    },
    pace,
    id,
  );
  if (!known) return error ? html`<${Heading} title="Job" /><${Failure} error=${error} />` : html`<${Loading} />`;
  const job = known.value;
  const Body = Object.hasOwn(BODIES, section) ? BODIES[section] : null;
  if (!Body) return html`<${Heading} title="No such page" /><p><a href=${address(["jobs", id])}>Back to the job</a></p>`;
  return html`
    <${Head} job=${job} onChanged=${refresh} />
    <${Failure} error=${error} hasValue=${true} />
    <nav class="sections" aria-label="Parts of this job">
      ${SECTIONS.filter(([, , concerns]) => concerns(job)).map(
        ([name, text]) => html`<a key=${name} href=${address(["jobs", id, name].filter(Boolean))} aria-current=${name === section ? "page" : undefined}>${text}</a>`,
      )}
    </nav>
    <${Body} key=${`${id}/${section}`} job=${job} onChanged=${refresh} />
  `;
}

function Head({ job, onChanged }) {
  const now = useNow(!isAtRest(job));
  const took = elapsed(job.started_at, job.finished_at ?? (isAtRest(job) ? job.updated_at : null), now);
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
        ["Took", took !== null && duration(took)],
        ["Runs again", job.next_run_at && moment(job.next_run_at)],
        ["Result", job.result && `${number(job.result.rows)} rows, ${size(job.result.bytes)}`],
      ]}
    />
    ${job.error && (job.status === "CANCELLED" ? html`<p class="quiet">${job.error.detail}</p>` : html`<${Problem} problem=${job.error} />`)}
  `;
}

function Actions({ job, onChanged }) {
  const { maySubmit } = useCaller();
  const [asked, setAsked] = useState(null);
  const [failure, setFailure] = useState(null);
  const [busy, setBusy] = useState(false);
  const isHere = useIsHere();
  const path = `v1/jobs/${job.id}`;

  async function act(method, to, body) {
    setBusy(true);
    try {
      await change(method, to, { body });
      setFailure(null);
      if (method !== "DELETE") onChanged();
      else if (isHere()) go("#/jobs");
    } catch (error) {
      setFailure(error);
    } finally {
      setBusy(false);
    }
  }

  function answered(yes) {
    const { method, to, body } = asked;
    setAsked(null);
    if (!yes) return;
    // The button that was pressed rests now, or goes.
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
      ${streams && job.status === "STOPPED" && html`<button type="button" class="plain" disabled=${busy} onClick=${() => setAsked({ method: "POST", to: `${path}/resume`, body: { from: "scratch" }, question: `Resume “${job.name}” from scratch? Its state and result are thrown away, and everything that is still there is read again.`, action: "Begin from scratch" })}>Resume from scratch</button>`}
      ${live && html`<button type="button" class="plain" disabled=${busy} onClick=${() => setAsked({ method: "POST", to: `${path}/cancel`, question: `Cancel “${job.name}”? What it has done is lost.`, action: "Cancel the job" })}>Cancel</button>`}
      ${isAtRest(job) && html`<button type="button" class="plain" disabled=${busy} onClick=${() => setAsked({ method: "DELETE", to: path, question: `Delete “${job.name}” with its result, plan and metrics?`, action: "Delete" })}>Delete</button>`}
    </div>
    ${failure && html`<${Failure} error=${failure} />`}
    ${asked && html`<${Confirm} question=${asked.question} action=${asked.action} onAnswer=${answered} />`}
  </div>`;
}

// A state as a word with a mark; never by colour alone.
import { html } from "../../vendor/preact.js";

const KINDS = {
  QUEUED: ["waiting", "○"],
  PLANNING: ["active", "◔"],
  RUNNING: ["active", "◑"],
  CANCELLING: ["active", "◌"],
  STOPPING: ["active", "◌"],
  STOPPED: ["rest", "❙❙"],
  SUCCEEDED: ["good", "✓"],
  FAILED: ["bad", "✕"],
  CANCELLED: ["rest", "⊘"],
  TIMED_OUT: ["bad", "⧖"],
  CRASHED: ["bad", "✕"],
  READY: ["good", "✓"],
  STARTING: ["active", "◔"],
  DRAINING: ["active", "◌"],
  UNAVAILABLE: ["bad", "✕"],
  SILENT: ["bad", "?"],
};

/** A job's or a worker's state. One that is not known here is shown as it is. */
export function Status({ value }) {
  const [kind, mark] = KINDS[value] ?? ["rest", "·"];
  return html`<span class="status status-${kind}"><span class="mark" aria-hidden="true">${mark}</span>${value}</span>`;
}

/** Whether a job does nothing until somebody asks it to. */
export const isAtRest = (job) => job.finished || job.status === "STOPPED";

/** How far a job is: a bar where tasks are counted, words otherwise. */
export function ProgressBar({ job }) {
  const progress = job.progress;
  if (isAtRest(job)) return null;
  if (job.status === "QUEUED") return html`<span class="quiet">${WAITS[job.waiting_for] ?? "queued"}</span>`;
  if (!progress?.tasks_total) return html`<span class="quiet">${job.status === "PLANNING" ? "looks at the data" : ""}</span>`;
  const told = `${progress.tasks_done} of ${progress.tasks_total} tasks`;
  return html`<span class="progress">
    <progress max=${progress.tasks_total} value=${progress.tasks_done} aria-label=${told}></progress>
    <span class="quiet">${told}</span>
  </span>`;
}

const WAITS = {
  slot: "waits for a free worker",
  worker: "no worker listens to its queue",
  tenant: "waits for another job of yours to end",
  retry: "failed; is tried again",
};

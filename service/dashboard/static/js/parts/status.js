// States of jobs and workers: always a word and a symbol, never a colour alone.
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

/** The state of a job or a worker. An unknown state is shown without a symbol of its own. */
export function Status({ value }) {
  const [kind, mark] = KINDS[value] ?? ["rest", "·"];
  return html`<span class="status status-${kind}"><span class="mark" aria-hidden="true">${mark}</span>${value}</span>`;
}

/** Whether a job has finished or is stopped, so that its state changes only on request. */
export const isIdle = (job) => job.finished || job.status === "STOPPED";

/** The progress of a job: a bar if its tasks are counted, otherwise a text. */
export function ProgressBar({ job }) {
  const progress = job.progress;
  if (isIdle(job)) return null;
  if (job.status === "QUEUED") return html`<span class="quiet">${WAITS[job.waiting_for] ?? "queued"}</span>`;
  if (!progress?.tasks_total) return html`<span class="quiet">${job.status === "PLANNING" ? "reading statistics" : ""}</span>`;
  const text = `${progress.tasks_done} of ${progress.tasks_total} tasks`;
  return html`<span class="progress">
    <progress max=${progress.tasks_total} value=${progress.tasks_done} aria-label=${text}></progress>
    <span class="quiet">${text}</span>
  </span>`;
}

const WAITS = {
  slot: "waiting for a free worker",
  worker: "no worker serves its queue",
  tenant: "waiting for another job of its tenant",
  retry: "failed; waiting for the next attempt",
};

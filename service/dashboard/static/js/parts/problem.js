// Problems that the service reported.
import { html } from "../../vendor/preact.js";
import { duration } from "../format.js";

/** Returns the problem of a failed request, with the seconds of its Retry-After header. */
export const problemOf = (error) => ({ detail: error.message, ...error.problem, retryAfterSeconds: error.retryAfterSeconds });

/** A problem, with each of its errors unless the only error repeats it. */
export function Problem({ problem }) {
  const errors = problem.errors ?? [];
  const isSingle = errors.length === 1 && errors[0].detail === problem.detail;
  return html`<div class="problem" role="alert">
    <strong>${problem.title ?? "The request failed"}</strong>
    <p>${isSingle && locationOf(errors[0])}${problem.detail}</p>
    ${errors.length > 0 &&
    !isSingle &&
    html`<ul>
      ${errors.map((issue) => html`<li key=${issue.pointer + issue.detail}>${locationOf(issue)}${issue.detail}</li>`)}
    </ul>`}
    ${problem.retryAfterSeconds > 0 && html`<p>Try again in ${duration(problem.retryAfterSeconds * 1000)}.</p>`}
    ${problem.code && html`<p class="quiet small">Code <code>${problem.code}</code>${problem.request_id && html`, request <code>${problem.request_id}</code>`}</p>`}
  </div>`;
}

/** The problem of a failed request; only one line if an earlier value is still shown. */
export function Failure({ error, hasValue = false }) {
  if (!error) return null;
  if (hasValue) return html`<p class="stale" role="status">Not up to date: ${error.message}</p>`;
  return html`<${Problem} problem=${problemOf(error)} />`;
}

function locationOf(issue) {
  if (issue.line) return html`<span class="place">Line ${issue.line}, column ${issue.column}: </span>`;
  return issue.pointer ? html`<code class="place">${issue.pointer}</code> ` : null;
}

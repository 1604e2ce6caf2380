// What went wrong, in the service's own words.
import { html } from "../../vendor/preact.js";
import { duration } from "../format.js";

/** What a failed request came to, with the seconds after which it may be sent again where the service told. */
export const asProblem = (error) => ({ detail: error.message, ...error.problem, retryAfterSeconds: error.retryAfterSeconds });

/** A problem as the service told it, with each of its errors that says more. */
export function Problem({ problem }) {
  const errors = problem.errors ?? [];
  const isOne = errors.length === 1 && errors[0].detail === problem.detail;
  return html`<div class="problem" role="alert">
    <strong>${problem.title ?? "It did not work"}</strong>
    <p>${isOne && place(errors[0])}${problem.detail}</p>
    ${errors.length > 0 &&
    !isOne &&
    html`<ul>
      ${errors.map((one) => html`<li key=${one.pointer + one.detail}>${place(one)}${one.detail}</li>`)}
    </ul>`}
    ${problem.retryAfterSeconds > 0 && html`<p>Try again in ${duration(problem.retryAfterSeconds * 1000)}.</p>`}
    ${problem.code && html`<p class="quiet small">Code <code>${problem.code}</code>${problem.request_id && html`, request <code>${problem.request_id}</code>`}</p>`}
  </div>`;
}

/** The problem of a failed request, unless what is shown is only out of date: then a line. */
export function Failure({ error, hasValue = false }) {
  if (!error) return null;
  if (hasValue) return html`<p class="stale" role="status">Not up to date: ${error.message}</p>`;
  return html`<${Problem} problem=${asProblem(error)} />`;
}

function place(issue) {
  if (issue.line) return html`<span class="place">Line ${issue.line}, column ${issue.column}: </span>`;
  return issue.pointer ? html`<code class="place">${issue.pointer}</code> ` : null;
}

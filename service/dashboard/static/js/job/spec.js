// What was posted, as the service keeps it.
import { html } from "../../vendor/preact.js";
import { Facts, Listing } from "../parts/basics.js";

/** The section. */
export function SpecSection({ job }) {
  return html`<section>
    <h2>Specification</h2>
    <${Facts} entries=${[["Request", job.request_id && html`<code>${job.request_id}</code>`]]} />
    <${Listing} text=${JSON.stringify(job.spec, null, 2)} label="Specification of the job" />
  </section>`;
}

// The statistics that the cost model used, and its estimates compared with measurements.
import { html } from "../../vendor/preact.js";
import { duration, number, share, size } from "../format.js";
import { numeric, Table, Text } from "../parts/basics.js";
import { nodeNumber, wrongEstimates, wrongText } from "./nodes.js";

/** Sizes of the tables, and sampled statistics of their keys. */
export function Statistics({ report }) {
  const keys = report.keys.filter((key) => key.columns.length > 0);
  return html`<section>
    <h2>Statistics</h2>
    <p class="quiet small">Gathered in ${duration(report.statistics_ms)}.</p>
    <${Table} label="Tables" head=${["Table", numeric("Files"), numeric("Size"), numeric("Rows")]}>
      ${report.tables.map(
        (table) => html`<tr key=${table.table}>
          <th scope="row">${table.table}</th>
          <td class="numeric">${number(table.files)}</td>
          <td class="numeric">${size(table.bytes)}</td>
          <td class="numeric">${table.rows_are_exact ? "" : "≈ "}${number(table.rows)}</td>
        </tr>`,
      )}
    <//>
    ${keys.length > 0 &&
    html`<${Table} label="Keys" head=${["Key", numeric("Distinct values (estimate)"), numeric("NULL"), "Most frequent", numeric("Sampled rows")]}>
      ${keys.map(
        (key, at) => html`<tr key=${at}>
          <th scope="row">${key.columns.join(", ")}</th>
          <td class="numeric">${key.sampled_rows ? number(key.distinct_keys) : "unknown"}</td>
          <td class="numeric">${key.sampled_rows ? share(key.null_share) : ""}</td>
          <td>${mostFrequent(key)}</td>
          <td class="numeric">${number(key.sampled_rows)}</td>
        </tr>`,
      )}
    <//>`}
  </section>`;
}

function mostFrequent({ hot_keys: [hot], sampled_rows: sampled }) {
  if (!hot) return sampled ? "no hot key" : "";
  return html`<${Text} text=${hot.value} />: ${share(hot.share)}`;
}

/** Estimates that were wrong by more than a factor of ten, as a section. */
export function WrongEstimates({ metrics }) {
  const wrong = wrongEstimates(metrics);
  if (wrong.length === 0) return null;
  return html`<section>
    <h2>Estimates that differ</h2>
    <${ListOfEstimates} wrong=${wrong} />
  </section>`;
}

function ListOfEstimates({ wrong }) {
  return html`
    <p>These estimates differ from the measurements by more than ten times. The result is correct: estimates only decide between plans. If the job is slow, set the setting of the rule to another value with “Edit as new”, and compare the run times.</p>
    <ul class="rules">${wrong.map((estimate, at) => html`<li key=${at}>${wrongText(estimate)}</li>`)}</ul>
  `;
}

/** The estimates for the chosen plan, next to the measurements. */
export function Estimates({ estimates, resultRows }) {
  if (!estimates) return null;
  const wrong = estimates.wrong ?? [];
  const rows = [
    ["Rows read", estimates.estimated_rows_read, estimates.measured_rows_read, "rows_read"],
    [`Rows shuffled${estimates.all_estimated ? "" : " (measured: whole query)"}`, estimates.estimated_rows_shuffled, estimates.measured_rows_shuffled, "rows_shuffled"],
    ["Rows on the hottest task", estimates.estimated_rows_on_hottest_task, estimates.measured_rows_on_hottest_task, "rows_on_hottest_task"],
    ["Rows of the result", estimates.estimated_result_rows, resultRows],
  ];
  return html`<section>
    <h2>Estimated and measured</h2>
    <p>${estimates.summary}</p>
    <${Table} label="Estimated and measured" head=${["", numeric("Estimated"), numeric("Measured")]}>
      ${rows.map(([name, estimated, measured, quantity]) => html`<tr key=${name}>
        <th scope="row">${name}${wrong.some((estimate) => estimate.quantity === quantity && estimate.node === null) && html` <span class="tag">differs</span>`}</th>
        <td class="numeric">${number(estimated)}</td>
        <td class="numeric">${number(measured)}</td>
      </tr>`)}
    <//>
    ${wrong.length > 0 && html`<${ListOfEstimates} wrong=${wrong} />`}
    ${estimates.choices.length > 0 &&
    html`<details>
      <summary>Choices of the cost model</summary>
      <${Table} label="Choices of the cost model" head=${["Rule", "Node", "Alternative", numeric("Rows shuffled: estimated"), numeric("measured"), numeric("On the hottest task: estimated"), numeric("measured")]}>
        ${estimates.choices.map(
          (estimate, at) => html`<tr key=${at} title=${estimate.node}>
            <th scope="row">${estimate.rule}${estimate.is_wrong && html` <span class="tag">differs</span>`}</th>
            <td>${nodeNumber(estimate.node_id)}</td>
            <td>${estimate.alternative}</td>
            <td class="numeric">${number(estimate.estimated_rows_shuffled)}</td>
            <td class="numeric">${number(estimate.measured_rows_shuffled)}</td>
            <td class="numeric">${number(estimate.estimated_rows_on_hottest_task)}</td>
            <td class="numeric">${number(estimate.measured_rows_on_hottest_task)}</td>
          </tr>`,
        )}
      <//>
    </details>`}
  </section>`;
}

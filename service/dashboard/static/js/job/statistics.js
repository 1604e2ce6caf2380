// What the cost model knew of the tables and their keys, and how far its estimates were from what was measured.
import { html } from "../../vendor/preact.js";
import { duration, number, share, size } from "../format.js";
import { numeric, Table, Text } from "../parts/basics.js";
import { nodeNumber, wrongEstimates, wrongText } from "./nodes.js";

/** Sizes of the tables and what their keys look like, from samples. */
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
    html`<${Table} label="Keys" head=${["Key", numeric("Distinct, about"), numeric("NULL"), "Most frequent", numeric("Rows sampled")]}>
      ${keys.map(
        (key, at) => html`<tr key=${at}>
          <th scope="row">${key.columns.join(", ")}</th>
          <td class="numeric">${key.sampled_rows ? number(key.distinct_keys) : "not known"}</td>
          <td class="numeric">${key.sampled_rows ? share(key.null_share) : ""}</td>
          <td>${mostFrequent(key)}</td>
          <td class="numeric">${number(key.sampled_rows)}</td>
        </tr>`,
      )}
    <//>`}
  </section>`;
}

function mostFrequent({ hot_keys: [hot], sampled_rows: sampled }) {
  if (!hot) return sampled ? "none stands out" : "";
  return html`<${Text} text=${hot.value} />: ${share(hot.share)}`;
}

/** Estimates that were more than ten times as high, or as low, as what was measured. */
export function WrongEstimates({ metrics }) {
  const wrong = wrongEstimates(metrics);
  if (wrong.length === 0) return null;
  return html`<section>
    <h2>Wrong estimates</h2>
    <ul class="rules">${wrong.map((one, at) => html`<li key=${at} class="field-error">${wrongText(one)}</li>`)}</ul>
  </section>`;
}

/** The estimates that the plan was chosen by, next to what was measured. */
export function Estimates({ estimates, resultRows }) {
  if (!estimates) return null;
  const wrong = estimates.wrong ?? [];
  const rows = [
    ["Rows read", estimates.estimated_rows_read, estimates.measured_rows_read, "rows_read"],
    [`Rows shuffled${estimates.all_estimated ? "" : " (measured: of the whole query)"}`, estimates.estimated_rows_shuffled, estimates.measured_rows_shuffled, "rows_shuffled"],
    ["Rows on the hottest task", estimates.estimated_rows_on_hottest_task, estimates.measured_rows_on_hottest_task, "rows_on_hottest_task"],
    ["Rows of the result", estimates.estimated_result_rows, resultRows],
  ];
  return html`<section>
    <h2>Estimated and measured</h2>
    <p>${estimates.summary}</p>
    <${Table} label="Estimated and measured" head=${["", numeric("Estimated"), numeric("Measured")]}>
      ${rows.map(([name, estimated, measured, quantity]) => html`<tr key=${name}>
        <th scope="row">${name}${wrong.some((one) => one.quantity === quantity && one.node === null) && html` <span class="tag">wrong</span>`}</th>
        <td class="numeric">${number(estimated)}</td>
        <td class="numeric">${number(measured)}</td>
      </tr>`)}
    <//>
    ${wrong.length > 0 && html`<ul class="rules">${wrong.map((one, at) => html`<li key=${at}>${wrongText(one)}</li>`)}</ul>`}
    ${estimates.choices.length > 0 &&
    html`<details>
      <summary>By choice of the cost model</summary>
      <${Table} label="Choices of the cost model" head=${["Rule", "Node", "Way", numeric("Rows shuffled: estimated"), numeric("measured"), numeric("On the hottest task: estimated"), numeric("measured")]}>
        ${estimates.choices.map(
          (one, at) => html`<tr key=${at} title=${one.node}>
            <th scope="row">${one.rule}${one.is_wrong && html` <span class="tag">wrong</span>`}</th>
            <td>${nodeNumber(one.node_id)}</td>
            <td>${one.alternative}</td>
            <td class="numeric">${number(one.estimated_rows_shuffled)}</td>
            <td class="numeric">${number(one.measured_rows_shuffled)}</td>
            <td class="numeric">${number(one.estimated_rows_on_hottest_task)}</td>
            <td class="numeric">${number(one.measured_rows_on_hottest_task)}</td>
          </tr>`,
        )}
      <//>
    </details>`}
  </section>`;
}

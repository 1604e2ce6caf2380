// A job's plan before and after the rules, the decision of each rule, and the costs of its alternatives.
import { html, useMemo, useState } from "../../vendor/preact.js";
import { duration, shortNumber } from "../format.js";
import { Listing, Loading, numeric, Table } from "../parts/basics.js";
import { PlanGraph } from "../parts/plan_graph.js";
import { Failure } from "../parts/problem.js";
import { marksAfter, marksBefore, nodeNumber, wrongByNode } from "./nodes.js";
import { useReport } from "./reports.js";
import { Estimates, Statistics } from "./statistics.js";

/** The section "Plan" of a job. */
export function PlanSection({ job }) {
  const plan = useReport(job, "plan");
  const metrics = useReport(job, "metrics");
  if (!plan.value) {
    if (plan.error) return html`<${Failure} error=${plan.error} />`;
    return plan.missing ? html`<p class="empty">${plan.missing}</p>` : html`<${Loading} />`;
  }
  return html`
    <${Failure} error=${plan.error ?? metrics.error} hasValue=${true} />
    <${PlanReport} report=${plan.value} metrics=${metrics.value} unmeasured=${metrics.missing} />
  `;
}

/** A plan report, with metrics if the job has run. `unmeasured` is the reason why there are none. */
export function PlanReport({ report, metrics, unmeasured }) {
  const [view, setView] = useState("both");
  const before = useMemo(() => marksBefore(report), [report]);
  const after = useMemo(() => marksAfter(report), [report]);
  const figures = useMemo(() => byId(metrics?.nodes), [metrics]);
  const scans = useMemo(() => tableSizes(report), [report]);
  const wrong = useMemo(() => wrongByNode(metrics), [metrics]);
  const operators = metrics?.operators;
  const views = [["both", "Before and after"], ["before", "Before"], ["after", "After"], ...(operators?.length ? [["run", "Spark operators"]] : [])];
  return html`
    <section>
      <div class="section-head">
        <h2>Plan</h2>
        <div class="buttons" role="group" aria-label="Which plan">
          ${views.map(([name, text]) => html`<button type="button" key=${name} class="plain small" aria-pressed=${view === name} onClick=${() => setView(name)}>${text}</button>`)}
        </div>
      </div>
      <div class=${view === "both" ? "pair" : ""}>
        ${(view === "both" || view === "before") && html`<div><h3>Before the rules</h3><${PlanGraph} nodes=${report.before.nodes} marks=${before} figures=${scans.before} label="Plan before the rules" /></div>`}
        ${(view === "both" || view === "after") && html`<div><h3>After the rules</h3><${PlanGraph} nodes=${report.after.nodes} marks=${after} figures=${figures ?? scans.after} wrong=${wrong} label="Plan after the rules" /></div>`}
        ${view === "run" && html`<div><h3>Operators that Spark ran</h3><${PlanGraph} nodes=${operators} figures=${byId(operators) ?? {}} label="Spark's operators" /></div>`}
      </div>
      ${view === "run" && metrics.operators_truncated && html`<p class="quiet small">Only the first operators are stored; Spark ran more.</p>`}
      <p class="quiet small">Rows marked ≈ are estimates. An Exchange is a shuffle: it sends rows with the same key to the same task. ${metrics ? runSummary(metrics) : unmeasured}</p>
    </section>
    ${report.first_run && html`<${FirstRun} run=${report.first_run} />`}
    <${Rules} rules=${report.rules} />
    <${Estimates} estimates=${metrics?.estimates} resultRows=${metrics?.result_rows} />
    <${Statistics} report=${report} />
    <section>
      <h2>Plan as text</h2>
      <details><summary>Plan before the rules</summary><${Listing} text=${report.before.text} label="Plan before the rules, as text" /></details>
      <details><summary>Plan after the rules</summary><${Listing} text=${report.after.text} label="Plan after the rules, as text" /></details>
      <details><summary>SQL after the rules</summary><${Listing} text=${report.after.sql} label="SQL after the rules" /></details>
      ${report.physical_plan && html`<details><summary>Spark's physical plan</summary><${Listing} text=${report.physical_plan} label="Spark's physical plan" /></details>`}
    </section>
  `;
}

/** The first run of a job that ran out of memory and was run again. */
function FirstRun({ run }) {
  return html`<section>
    <h2>Second run</h2>
    <p>The first run failed after ${duration(run.execution_ms)}: ${run.failure} Everything else on this page describes the second run.</p>
    <details>
      <summary>Plan of the first run</summary>
      <ul>${run.rules.map((trace, at) => html`<li key=${at}><span class="tag">${trace.outcome}</span> <code>${trace.rule}</code> ${trace.reason}</li>`)}</ul>
      <${Listing} text=${run.after.text} label="Plan of the first run, as text" />
    </details>
  </section>`;
}

function Rules({ rules }) {
  return html`<section>
    <h2>Rules</h2>
    <ul class="rules">
      ${rules.map(
        (trace, at) => html`<li key=${at} class=${`rule-${trace.outcome}`}>
          <p><span class="tag">${trace.outcome}</span> <code>${trace.rule}</code></p>
          <p>${trace.reason}</p>
          <p class="quiet small cut" title=${trace.node}>${nodeNumber(trace.node_id)} ${trace.node}</p>
          ${trace.alternatives.length > 0 && html`<${Alternatives} trace=${trace} />`}
        </li>`,
      )}
    </ul>
  </section>`;
}

function Alternatives({ trace }) {
  const most = Math.max(...trace.alternatives.map((one) => one.cost), 1);
  return html`<details open=${trace.outcome === "fired"}>
    <summary>${trace.alternatives.length} alternatives</summary>
    <${Table} label=${`Alternatives of ${trace.rule}`} head=${["Alternative", numeric("Cost"), "", numeric("Rows shuffled"), numeric("Rows on the hottest task")]}>
      ${trace.alternatives.map(
        (one) => html`<tr key=${one.name} class=${one.chosen ? "is-chosen" : ""}>
          <th scope="row">${one.name}${one.chosen && html` <span class="tag">chosen</span>`}</th>
          <td class="numeric">${shortNumber(one.cost)}</td>
          <td class="bar-cell"><span class="bar" style=${{ width: `${(100 * one.cost) / most}%` }}></span></td>
          <td class="numeric">${shortNumber(one.rows_shuffled)}</td>
          <td class="numeric">${shortNumber(one.rows_on_hottest_task)}</td>
        </tr>`,
      )}
    <//>
    <p class="quiet small">Cost: rows that the slowest task processes, summed over all phases; lower is better.</p>
  </details>`;
}

const runSummary = (metrics) =>
  `Planned in ${duration(metrics.planning_ms)}, ran for ${duration(metrics.execution_ms)}${metrics.slots ? ` on ${metrics.slots} slots` : ""}.`;

const byId = (figures) => (figures?.length ? Object.fromEntries(figures.map((one) => [one.id, one])) : null);

/** Returns the bytes that each scan reads, and its rows if they are exact; they are known before the job runs. */
function tableSizes(report) {
  const sizes = new Map(report.tables.map((table) => [table.table, { bytes: table.bytes, rows: table.rows_are_exact ? table.rows : null }]));
  const figures = (tree) =>
    Object.fromEntries(tree.nodes.filter((node) => node.operator === "Scan").map((node) => [node.id, sizes.get(alias(node.detail))]));
  return { before: figures(report.before), after: figures(report.after) };
}

const alias = (detail) => /^\S+(?: AS (\S+))?/.exec(detail)?.[1] ?? /^\S+/.exec(detail)?.[0];

// The plan before and after the rules, what each rule did and why, and what the cost model weighed.
import { html, useMemo, useState } from "../../vendor/preact.js";
import { duration, shortNumber } from "../format.js";
import { Listing, Loading, numeric, Table } from "../parts/basics.js";
import { PlanGraph } from "../parts/plan_graph.js";
import { Failure } from "../parts/problem.js";
import { isOf, marksAfter, marksBefore, nodeNumber, wrongByNode, wrongEstimates, wrongText } from "./nodes.js";
import { useReport } from "./reports.js";
import { Estimates, Statistics } from "./statistics.js";

/** The section. */
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

/** A plan report, with what was measured where the job has run; `unmeasured` says why there is nothing of that. */
export function PlanReport({ report, metrics, unmeasured }) {
  const [view, setView] = useState("both");
  const before = useMemo(() => marksBefore(report), [report]);
  const after = useMemo(() => marksAfter(report), [report]);
  const figures = useMemo(() => byId(metrics?.nodes), [metrics]);
  const scans = useMemo(() => tableBytes(report), [report]);
  const wrong = useMemo(() => wrongByNode(metrics), [metrics]);
  const operators = metrics?.operators;
  const views = [["both", "Before and after"], ["before", "Before"], ["after", "After"], ...(operators?.length ? [["run", "As Spark ran it"]] : [])];
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
        ${view === "run" && html`<div><h3>Operators as Spark ran them</h3><${PlanGraph} nodes=${operators} figures=${byId(operators) ?? {}} label="Spark's operators" /></div>`}
      </div>
      ${view === "run" && metrics.operators_cut && html`<p class="quiet small">There were more operators than are kept: these are the first.</p>`}
      <p class="quiet small">Rows marked ≈ are estimates. ${metrics ? ran(metrics) : unmeasured}</p>
    </section>
    ${report.first_run && html`<${FirstRun} run=${report.first_run} />`}
    <${Rules} rules=${report.rules} wrong=${wrongEstimates(metrics)} />
    <${Estimates} estimates=${metrics?.estimates} resultRows=${metrics?.result_rows} />
    <${Statistics} report=${report} />
    <section>
      <h2>Texts</h2>
      <details><summary>Plan before the rules</summary><${Listing} text=${report.before.text} label="Plan before the rules, as text" /></details>
      <details><summary>Plan after the rules</summary><${Listing} text=${report.after.text} label="Plan after the rules, as text" /></details>
      <details><summary>SQL after the rules</summary><${Listing} text=${report.after.sql} label="SQL after the rules" /></details>
      ${report.physical_plan && html`<details><summary>Spark's physical plan</summary><${Listing} text=${report.physical_plan} label="Spark's physical plan" /></details>`}
    </section>
  `;
}

/** Memory did not suffice for the first run; all else on the page is of the second. */
function FirstRun({ run }) {
  return html`<section>
    <h2>It ran twice</h2>
    <p>The first run failed after ${duration(run.execution_ms)}: ${run.failure} All else here is of the second.</p>
    <details>
      <summary>How the first one was planned</summary>
      <ul>${run.rules.map((trace, at) => html`<li key=${at}><span class="tag">${trace.outcome}</span> <code>${trace.rule}</code> ${trace.reason}</li>`)}</ul>
      <${Listing} text=${run.after.text} label="Plan of the first run, as text" />
    </details>
  </section>`;
}

function Rules({ rules, wrong }) {
  return html`<section>
    <h2>Rules</h2>
    <ul class="rules">
      ${rules.map(
        (trace, at) => html`<li key=${at} class=${`rule-${trace.outcome}`}>
          <p><span class="tag">${trace.outcome}</span> <code>${trace.rule}</code></p>
          <p>${trace.reason}</p>
          ${wrong.filter((one) => isOf(one, trace)).map((one) => html`<p key=${one.quantity} class="field-error">${wrongText(one)}</p>`)}
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
    <summary>${trace.alternatives.length} ways were weighed</summary>
    <${Table} label=${`Ways that ${trace.rule} weighed`} head=${["Way", numeric("Cost"), "", numeric("Rows shuffled"), numeric("Rows on the hottest task")]}>
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
    <p class="quiet small">Cost: rows that the slowest task handles, all phases added; lower is better.</p>
  </details>`;
}

const ran = (metrics) =>
  `Planned in ${duration(metrics.planning_ms)}, ran for ${duration(metrics.execution_ms)}${metrics.slots ? ` on ${metrics.slots} slots` : ""}.`;

const byId = (figures) => (figures?.length ? Object.fromEntries(figures.map((one) => [one.id, one])) : null);

/** The size of the files that a scan reads is known before anything runs. */
function tableBytes(report) {
  const sizes = new Map(report.tables.map((table) => [table.table, table.bytes]));
  const figures = (tree) =>
    Object.fromEntries(tree.nodes.filter((node) => node.operator === "Scan").map((node) => [node.id, { bytes: sizes.get(alias(node.detail)) }]));
  return { before: figures(report.before), after: figures(report.after) };
}

const alias = (detail) => /^\S+(?: AS (\S+))?/.exec(detail)?.[1] ?? /^\S+/.exec(detail)?.[0];

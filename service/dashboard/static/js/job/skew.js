// Whether a job is skewed, by which keys, what the skew costs, and which setting would help.
import { html, useRef, useState } from "../../vendor/preact.js";
import { change } from "../api.js";
import { useCaller } from "../session.js";
import { duration, factor, number, share, shortNumber } from "../format.js";
import { Loading, numeric, Table, Text, useIsMounted } from "../parts/basics.js";
import { Failure } from "../parts/problem.js";
import { address, go } from "../router.js";
import { withSetting } from "../settings.js";
import { useReport } from "./reports.js";
import { WrongEstimates } from "./statistics.js";

/** The section "Skew" of a job. */
export function SkewSection({ job }) {
  const [slots, setSlots] = useState("");
  const metrics = useReport(job, slots ? `metrics?slots=${slots}` : "metrics");
  // The previous metrics stay until those for another number of slots are loaded.
  const latest = useRef(undefined);
  latest.current = metrics.value ?? latest.current;
  if (!latest.current) {
    if (metrics.error) return html`<${Failure} error=${metrics.error} />`;
    return metrics.missing ? html`<p class="empty">${metrics.missing}</p>` : html`<${Loading} />`;
  }
  const { skew, stages, savings, execution_ms: executionMs } = latest.current;
  return html`
    <section class=${`verdict${skew.skewed ? " is-skewed" : ""}`}>
      <h2>${skew.skewed ? "Skewed" : "Not skewed"}</h2>
      <p class="lead">${skew.advice}</p>
      ${skew.lost_ms > 0 && !savings?.simulated && html`<p>With even tasks, its stages would have taken <strong>${duration(skew.lost_ms)}</strong> less, of ${duration(executionMs)}.</p>`}
      ${skew.setting && html`<${Resubmit} job=${job} setting=${skew.setting} value=${skew.value} />`}
    </section>
    <${Failure} error=${metrics.error} hasValue=${true} />
    <${Savings} metrics=${latest.current} slots=${slots} onSlots=${setSlots} />
    <${WrongEstimates} metrics=${latest.current} />
    <${HotKeys} keys=${skew.keys} />
    <${Stages} stages=${stages} skewed=${skew.stages} />
  `;
}

function Resubmit({ job, setting, value }) {
  const { maySubmit } = useCaller();
  const [failure, setFailure] = useState(null);
  const [sent, setSent] = useState(false);
  // Pressing the button again after a lost response submits the same job.
  const isMounted = useIsMounted();
  const idempotencyKey = useRef(`page-${Date.now()}-${Math.random().toString(36).slice(2)}`);

  async function resubmit() {
    setSent(true);
    const spec = { ...job.spec, settings: withSetting(job.spec.settings, setting, value), compare_with: job.id };
    try {
      const next = await change("POST", "v1/jobs", { body: spec, headers: { "Idempotency-Key": idempotencyKey.current } });
      if (isMounted()) go(address(["jobs", next.id]));
    } catch (error) {
      setFailure(error);
      setSent(false);
    }
  }

  return html`<div>
    <p>Setting to change: <code>${setting} = ${value}</code></p>
    ${maySubmit && html`<button type="button" onClick=${resubmit} disabled=${sent}>Run again with ${setting} = ${value}</button>`}
    <${Failure} error=${failure} />
  </div>`;
}

function Savings({ metrics, slots, onSlots }) {
  const { comparison, savings } = metrics;
  const simulated = savings?.simulated;
  const estimated = (savings?.estimated ?? []).filter((estimate) => estimate.ratio && estimate.alternative !== estimate.spark_alternative);
  if (!simulated && !comparison && estimated.length === 0) return null;
  return html`<section>
    <h2>Saving</h2>
    ${comparison && html`<${Comparison} comparison=${comparison} />`}
    ${estimated.map(
      (estimate) => html`<p key=${`${estimate.rule}.${estimate.node_id ?? estimate.node}`}>
        Estimated: with <code>${estimate.alternative}</code> the slowest task processes ${shortNumber(estimate.cost)} rows; with Spark's default (<code>${estimate.spark_alternative}</code>), ${shortNumber(estimate.spark_cost)} rows${estimate.is_wrong ? ". This estimate differs from the measurement, so it does not show the saving." : html`: <strong>${factor(estimate.spark_cost / estimate.cost)}</strong>.`}
      </p>`,
    )}
    ${simulated && html`
      <p>
        Simulated: on ${number(simulated.slots)} slots, its stages take <strong>${duration(simulated.actual_ms)}</strong> as they are, and ${duration(simulated.balanced_ms)} with even tasks: ${simulated.saved_ms > 0 ? html`<strong>${duration(simulated.saved_ms)}</strong> less.` : "no saving."}
      </p>
      <p class="quiet small">The service repeats the measured tasks of all stages on this number of slots: as they were, and with the same work in tasks of equal length.</p>
      <label class="inline">Slots <input type="number" min="1" max="100000" value=${slots || simulated.slots} onChange=${(event) => event.target.validity.valid && event.target.value && onSlots(String(Number(event.target.value)))} /></label>
    `}
  </section>`;
}

function Comparison({ comparison }) {
  const other = html`<a href=${address(["jobs", comparison.job_id])}>the job it is compared with</a>`;
  const changed = Object.entries(comparison.settings_changed).map(([name, [before, after]]) => `${name}: ${before} → ${after}`);
  if (comparison.saved_ms === null) return html`<p>Measured: nothing to compare yet; ${other} is ${comparison.status}.</p>`;
  const saved = comparison.saved_ms;
  return html`<p>
    Measured: ${duration(comparison.before_ms)} for ${other}, ${duration(comparison.after_ms)} for this job: <strong>${saved >= 0 ? `${duration(saved)} saved` : `${duration(-saved)} lost`}</strong>${changed.length > 0 && html` by <code>${changed.join(", ")}</code>`}.${!comparison.same_query && " The two jobs run different queries."}
  </p>`;
}

function HotKeys({ keys }) {
  const found = keys.filter((key) => key.hot_keys.length);
  return html`<section>
    <h2>Hot keys</h2>
    ${found.length === 0 && html`<p class="quiet">The samples contain no hot key.</p>`}
    ${found.map(
      (key) => html`<${Table} key=${key.table + key.columns + key.role} caption=${keyText(key)} head=${["Key", numeric("Share of rows"), "", numeric("Rows (estimate)")]}>
        ${key.hot_keys.map(
          (hot) => html`<tr key=${hot.value + hot.is_null}>
            <th scope="row" class="key">${hot.is_null ? html`<em>${hot.value}</em>` : html`<${Text} text=${hot.value} />`}</th>
            <td class="numeric">${share(hot.share)}</td>
            <td class="bar-cell"><span class="bar is-hot" style=${{ width: `${100 * hot.share}%` }}></span></td>
            <td class="numeric">${number(hot.estimated_rows)}</td>
          </tr>`,
        )}
      <//>`,
    )}
  </section>`;
}

function keyText(key) {
  const load = !isKnown(key.rows_on_one_task) ? "" : `. One task reads ${number(key.rows_on_one_task)} rows of the first key (${key.estimate_is_wrong ? "this estimate differs from the measurement" : "estimate"})`;
  return `${key.columns.join(", ")} of ${key.table} (${key.role}), from ${number(key.sampled_rows)} sampled rows${load}`;
}

const isKnown = (value) => value !== null && value !== undefined;

/** Of two tasks, Spark reports the longer one as the median; the shorter one is used instead. */
const medianOf = ({ tasks, duration_ms: times }) => (tasks === 2 ? times?.min : times?.median);

function Stages({ stages, skewed }) {
  const skewedStages = new Map(skewed.map((stage) => [stage.stage_id, stage]));
  const lastAttempt = new Map(stages.map((stage) => [stage.stage_id, stage.stage_attempt]));
  const longest = Math.max(...stages.map((stage) => stage.duration_ms?.max ?? 0), 1);
  return html`<section>
    <h2>Task times of each stage</h2>
    <${Table} label="Task times of each stage" head=${["Stage", numeric("Tasks"), "Fastest to slowest task", numeric("Median"), numeric("Slowest"), numeric("Slowest / median"), numeric("Share of stage"), numeric("Rows read"), numeric("Spilled")]} cards>
      ${stages.map((stage) => {
        const times = stage.duration_ms;
        const loss = stage.stage_attempt === lastAttempt.get(stage.stage_id) && skewedStages.get(stage.stage_id);
        return html`<tr key=${`${stage.stage_id}.${stage.stage_attempt}`} class=${loss ? "is-skewed" : ""}>
          <th scope="row">${stage.stage_id} <span class="quiet">${stage.name}</span>${loss && html` <span class="tag">skewed: ${duration(loss.lost_ms)} lost</span>`}</th>
          <td class="numeric">${number(stage.tasks)}${stage.failed_tasks > 0 && html` <span class="tag">${number(stage.failed_tasks)} failed</span>`}</td>
          <td class="spread-cell">${times && html`<${Spread} times=${times} median=${medianOf(stage)} longest=${longest} />`}</td>
          <td class="numeric">${times ? duration(medianOf(stage)) : ""}</td>
          <td class="numeric">${times ? duration(times.max) : ""}</td>
          <td class="numeric">${medianOf(stage) ? factor(times.max / medianOf(stage)) : ""}</td>
          <td class="numeric">${times && stage.wall_ms ? share(Math.min(times.max / stage.wall_ms, 1)) : ""}</td>
          <td class="numeric">${number(stage.input_rows + stage.shuffle_read_rows)}</td>
          <td class="numeric">${stage.spilled_bytes ? `${number(Math.round(stage.spilled_bytes / 1e6))} MB` : ""}</td>
        </tr>`;
      })}
    <//>
    <p class="quiet small">The bar spans from the fastest to the slowest task; its dark part is the middle half, and the mark is the median. The time that a stage lost is how much longer its slowest task took than tasks of equal length. The job can lose less than the sum, because other stages use free slots.</p>
  </section>`;
}

function Spread({ times, median, longest }) {
  const at = (value) => `${(100 * value) / longest}%`;
  const text = `fastest ${duration(times.min)}, quarter ${duration(times.p25)}, median ${duration(median)}, three quarters ${duration(times.p75)}, slowest ${duration(times.max)}`;
  return html`<span class="spread" role="img" aria-label=${text} title=${text}>
    <span class="whole" style=${{ left: at(times.min), width: at(times.max - times.min) }}></span>
    <span class="middle" style=${{ left: at(times.p25), width: at(times.p75 - times.p25) }}></span>
    <span class="median" style=${{ left: at(median) }}></span>
  </span>`;
}

// A streaming job: how much comes, how long it takes, how large its state is, how far it is behind.
import { html, useMemo } from "../../vendor/preact.js";
import { get } from "../api.js";
import { duration, moment, number, shortNumber, size } from "../format.js";
import { Facts, Loading, numeric, Table } from "../parts/basics.js";
import { Chart } from "../parts/chart.js";
import { Failure } from "../parts/problem.js";
import { isAtRest } from "../parts/status.js";
import { usePolled } from "../polling.js";

const AGAIN_MS = 3000;
const SHOWN = 200;
const LISTED = 20;

/** The section. */
export function StreamSection({ job }) {
  const path = `v1/jobs/${job.id}`;
  const { value, error } = usePolled(
    async (_, signal) => {
      const [stream, page] = await Promise.all([
        get(`${path}/stream`, { signal }),
        get(`${path}/batches?page_size=${SHOWN}`, { signal }),
      ]);
      return { stream, batches: page.batches };
    },
    isAtRest(job) ? 0 : AGAIN_MS,
    `${path} ${isAtRest(job) ? job.version : "live"}`,
  );
  if (!value) return error ? html`<${Failure} error=${error} />` : html`<${Loading} />`;
  return html`
    <${Failure} error=${error} hasValue=${true} />
    <${HowFar} stream=${value.stream} />
    <${Charts} batches=${value.batches} latency=${job.spec.settings.mini_batch?.allow_latency} />
    <${Batches} batches=${value.batches.slice(0, LISTED)} />
  `;
}

function HowFar({ stream }) {
  const behind = Object.entries(stream.backlog?.tables ?? {}).map(([table, backlog]) => `${table}: ${told(backlog)}`);
  return html`<section>
    <h2>How far it is</h2>
    <${Facts}
      entries=${[
        ["Rows read", number(stream.rows_in)],
        ["Rows written", number(stream.rows_out)],
        ["Mini-batches", stream.last_batch === null ? "none yet" : number(stream.last_batch + 1)],
        ["Generation", stream.generation > 1 && stream.generation],
        ["Behind", behind.join("; ") || null],
        ["Rests because", stream.stopped_because],
      ]}
    />
  </section>`;
}

function told(backlog) {
  if (!backlog) return "not known";
  if (!backlog.files) return "nothing waits";
  const oldest = backlog.oldest_seconds === null ? "" : `, the oldest for ${duration(backlog.oldest_seconds * 1000)}`;
  return `${backlog.rows === null ? `${number(backlog.files)} files, ${size(backlog.bytes)}` : `${number(backlog.rows)} rows`}${oldest}`;
}

function Charts({ batches, latency }) {
  const done = useMemo(() => batches.filter((batch) => batch.committed_at && batch.rows_in !== null).reverse(), [batches]);
  const series = useMemo(() => {
    const pick = (label, format, value, kind) => [{ label, format, kind, values: done.map(value) }];
    return {
      times: done.map((batch) => Date.parse(batch.begun_at) / 1000),
      throughput: pick("Rows per second", shortNumber, (batch) => batch.metrics?.rows_per_second ?? null),
      latency: pick("Took", duration, (batch) => batch.elapsed_ms),
      rows: pick("Rows", shortNumber, (batch) => batch.rows_in, "bars"),
      state: pick("State", size, (batch) => stateBytes(batch)),
    };
  }, [done]);
  if (done.length === 0) return html`<p class="empty">No mini-batch is done yet.</p>`;
  const last = (list, format) => `The newest is ${format(list[0].values.at(-1))}.`;
  return html`<section>
    <h2>Mini-batches over time</h2>
    <div class="charts">
      <${Chart} title="Rows per second" times=${series.times} series=${series.throughput} summary=${last(series.throughput, shortNumber)} />
      <${Chart} title=${latency ? `Time that a mini-batch takes (allowed: ${latency})` : "Time that a mini-batch takes"} times=${series.times} series=${series.latency} summary=${last(series.latency, duration)} />
      <${Chart} title="Rows in a mini-batch" times=${series.times} series=${series.rows} summary=${last(series.rows, shortNumber)} />
      <${Chart} title="Size of the state" times=${series.times} series=${series.state} summary=${last(series.state, size)} />
    </div>
  </section>`;
}

function stateBytes(batch) {
  const parts = (batch.metrics?.state ?? []).map((one) => one.state_bytes ?? one.memory_bytes);
  return parts.length ? parts.reduce((sum, one) => sum + (one ?? 0), 0) : null;
}

function Batches({ batches }) {
  return html`<section>
    <h2>Newest mini-batches</h2>
    <${Table} label="Newest mini-batches" head=${["Mini-batch", "Begun", numeric("Took"), numeric("Rows read"), numeric("Rows written"), numeric("Rows/s")]}>
      ${batches.map(
        (batch) => html`<tr key=${`${batch.generation}.${batch.batch_id}`}>
          <th scope="row">${batch.batch_id}</th>
          <td class="quiet">${moment(batch.begun_at)}</td>
          <td class="numeric">${batch.committed_at ? duration(batch.elapsed_ms) : "under way"}</td>
          <td class="numeric">${number(batch.rows_in)}</td>
          <td class="numeric">${number(batch.rows_out)}</td>
          <td class="numeric">${shortNumber(batch.metrics?.rows_per_second)}</td>
        </tr>`,
      )}
    <//>
  </section>`;
}

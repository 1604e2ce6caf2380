// The progress of a streaming job: its throughput, the duration of its mini-batches, its state and its backlog.
import { html, useMemo, useState } from "../../vendor/preact.js";
import { get } from "../api.js";
import { duration, momentBelow, number, shortNumber, size } from "../format.js";
import { Facts, Loading, numeric, Table } from "../parts/basics.js";
import { Chart } from "../parts/chart.js";
import { Failure } from "../parts/problem.js";
import { isIdle } from "../parts/status.js";
import { usePolled } from "../polling.js";

const INTERVAL_MS = 3000;
const UNMEASURED_INTERVAL_MS = 15_000;
const CHARTED = 200;
const LISTED = 20;

const CHARTS = [
  { title: () => "Rows per second", label: "Rows per second", format: shortNumber, value: (batch) => batch.metrics?.rows_per_second ?? null },
  {
    title: (allowed) => `Duration of a mini-batch${allowed ? ` (allow_latency: ${allowed})` : ""}`,
    label: "Duration",
    format: duration,
    value: (batch) => batch.elapsed_ms,
  },
  { title: () => "Rows read by a mini-batch", label: "Rows", format: shortNumber, value: (batch) => batch.rows_in, areBars: true },
  { title: () => "Size of the state", label: "State", format: size, value: stateBytes },
];

/** The section "Stream" of a streaming job. */
export function StreamSection({ job }) {
  const path = `v1/jobs/${job.id}`;
  const [isMeasured, setIsMeasured] = useState(false);
  const { value, error } = usePolled(
    async (before, signal) => {
      const [stream, batches] = await Promise.all([get(`${path}/stream`, { signal }), newestBatches(path, before?.batches ?? [], signal)]);
      setIsMeasured(stream.unmeasured_batches === 0);
      return { stream, batches };
    },
    isIdle(job) ? (isMeasured ? 0 : UNMEASURED_INTERVAL_MS) : INTERVAL_MS,
    path,
    isIdle(job) ? job.version : "live",
  );
  if (!value) return error ? html`<${Failure} error=${error} />` : html`<${Loading} />`;
  return html`
    <${Failure} error=${error} hasValue=${true} />
    <${Progress} stream=${value.stream} />
    <${Charts} batches=${value.batches} latency=${job.spec.settings.mini_batch?.allow_latency} />
    <${Batches} batches=${value.batches.slice(0, LISTED)} />
  `;
}

/** Returns the newest mini-batches, newest first. It requests only a few if these connect to the known ones. */
async function newestBatches(path, known, signal) {
  const page = async (size) => (await get(`${path}/batches?page_size=${size}`, { signal })).batches;
  const idOf = ({ generation, batch_id: id }) => `${generation}.${id}`;
  let fresh = await page(known.length ? LISTED : CHARTED);
  const freshIds = new Set(fresh.map(idOf));
  if (known.length && !known.some((batch) => freshIds.has(idOf(batch)))) fresh = await page(CHARTED);
  else fresh = [...fresh, ...known.filter((batch) => !freshIds.has(idOf(batch)))];
  return fresh.slice(0, CHARTED);
}

function Progress({ stream }) {
  const backlogs = Object.entries(stream.backlog?.tables ?? {}).map(([table, backlog]) => `${table}: ${backlogText(backlog)}`);
  return html`<section>
    <h2>Progress</h2>
    <${Facts}
      entries=${[
        ["Rows read", number(stream.rows_in)],
        ["Mini-batches without a row count", stream.unmeasured_batches > 0 && number(stream.unmeasured_batches)],
        ["Rows written", number(stream.rows_out)],
        ["Mini-batches", stream.last_batch === null ? "none yet" : number(stream.last_batch + 1)],
        ["Generation", stream.generation > 1 && stream.generation],
        ["Backlog", backlogs.join("; ") || null],
        ["Stop reason", stream.stopped_because],
      ]}
    />
    ${stream.refreshed_tables.map(({ table, version, refresh_error: failure }) => html`<p key=${table} class=${failure ? "field-error" : "quiet small"}>Lookup table ${table}: version ${version}.${failure && ` ${failure.detail}`}</p>`)}
  </section>`;
}

function backlogText(backlog) {
  if (!backlog) return "unknown";
  if (!backlog.files) return "none";
  const oldest = backlog.oldest_age_seconds === null ? "" : `, the oldest waiting for ${duration(backlog.oldest_age_seconds * 1000)}`;
  return `${backlog.rows === null ? `${number(backlog.files)} files, ${size(backlog.bytes)}` : `${number(backlog.rows)} rows`}${oldest}`;
}

function Charts({ batches, latency }) {
  const committed = useMemo(() => batches.filter((batch) => batch.committed_at && batch.rows_in !== null).reverse(), [batches]);
  const times = useMemo(() => committed.map((batch) => Date.parse(batch.begun_at) / 1000), [committed]);
  if (committed.length === 0) return html`<p class="empty">No mini-batch has been committed yet.</p>`;
  return html`<section>
    <h2>Mini-batches over time</h2>
    <div class="charts">
      ${CHARTS.map(({ title, ...one }) => html`<${BatchChart} key=${one.label} title=${title(latency)} times=${times} batches=${committed} ...${one} />`)}
    </div>
  </section>`;
}

function BatchChart({ batches, value, ...rest }) {
  const values = useMemo(() => batches.map(value), [batches]);
  return html`<${Chart} values=${values} summary=${`Latest value: ${rest.format(values.at(-1))}.`} ...${rest} />`;
}

function stateBytes(batch) {
  // The memory of the state stores is not used: for RocksDB it measures caches.
  const parts = (batch.metrics?.state ?? []).map((one) => one.state_bytes);
  return parts.length && parts.every((one) => one !== null) ? parts.reduce((sum, one) => sum + one, 0) : null;
}

function Batches({ batches }) {
  return html`<section>
    <h2>Newest mini-batches</h2>
    <${Table} label="Newest mini-batches" head=${["Mini-batch", "Started", numeric("Duration"), numeric("Rows read"), numeric("Rows written"), numeric("Rows/s")]}>
      ${batches.map(
        (batch, place) => html`<tr key=${`${batch.generation}.${batch.batch_id}`}>
          <th scope="row">${batch.batch_id}</th>
          <td class="quiet">${momentBelow(batch.begun_at, batches[place - 1]?.begun_at)}</td>
          <td class="numeric">${batch.committed_at ? duration(batch.elapsed_ms) : "running"}</td>
          <td class="numeric">${number(batch.rows_in)}</td>
          <td class="numeric">${number(batch.rows_out)}</td>
          <td class="numeric">${shortNumber(batch.metrics?.rows_per_second)}</td>
        </tr>`,
      )}
    <//>
  </section>`;
}

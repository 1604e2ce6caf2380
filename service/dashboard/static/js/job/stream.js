// A streaming job: how much comes, how long it takes, how large its state is, how far it is behind.
import { html, useMemo, useState } from "../../vendor/preact.js";
import { get } from "../api.js";
import { duration, moment, number, shortNumber, size } from "../format.js";
import { Facts, Loading, numeric, Table } from "../parts/basics.js";
import { Chart } from "../parts/chart.js";
import { Failure } from "../parts/problem.js";
import { isAtRest } from "../parts/status.js";
import { usePolled } from "../polling.js";

const AGAIN_MS = 3000;
const UNMEASURED_MS = 15_000;
const SHOWN = 200;
const LISTED = 20;

const CHARTS = [
  { title: () => "Rows per second", label: "Rows per second", format: shortNumber, value: (batch) => batch.metrics?.rows_per_second ?? null },
  {
    title: (allowed) => `Time that a mini-batch takes${allowed ? ` (allowed: ${allowed})` : ""}`,
    label: "Took",
    format: duration,
    value: (batch) => batch.elapsed_ms,
  },
  { title: () => "Rows in a mini-batch", label: "Rows", format: shortNumber, value: (batch) => batch.rows_in, areBars: true },
  { title: () => "Size of the state", label: "State", format: size, value: stateBytes },
];

/** The section. */
export function StreamSection({ job }) {
  const path = `v1/jobs/${job.id}`;
  const [isMeasured, setIsMeasured] = useState(false);
  const { value, error } = usePolled(
    async (before, signal) => {
      const [stream, batches] = await Promise.all([get(`${path}/stream`, { signal }), newest(path, before?.batches ?? [], signal)]);
      setIsMeasured(stream.unmeasured_batches === 0);
      return { stream, batches };
    },
    isAtRest(job) ? (isMeasured ? 0 : UNMEASURED_MS) : AGAIN_MS,
    path,
    isAtRest(job) ? job.version : "live",
  );
  if (!value) return error ? html`<${Failure} error=${error} />` : html`<${Loading} />`;
  return html`
    <${Failure} error=${error} hasValue=${true} />
    <${HowFar} stream=${value.stream} />
    <${Charts} batches=${value.batches} latency=${job.spec.settings.mini_batch?.allow_latency} />
    <${Batches} batches=${value.batches.slice(0, LISTED)} />
  `;
}

/** The newest mini-batches, newest first: a few are asked for where others are known, and all where there are too many. */
async function newest(path, known, signal) {
  const page = async (size) => (await get(`${path}/batches?page_size=${size}`, { signal })).batches;
  const named = ({ generation, batch_id: id }) => `${generation}.${id}`;
  let fresh = await page(known.length ? LISTED : SHOWN);
  const isThere = new Set(fresh.map(named));
  if (known.length && !known.some((batch) => isThere.has(named(batch)))) fresh = await page(SHOWN);
  else fresh = [...fresh, ...known.filter((batch) => !isThere.has(named(batch)))];
  return fresh.slice(0, SHOWN);
}

function HowFar({ stream }) {
  const behind = Object.entries(stream.backlog?.tables ?? {}).map(([table, backlog]) => `${table}: ${told(backlog)}`);
  return html`<section>
    <h2>How far it is</h2>
    <${Facts}
      entries=${[
        ["Rows read", number(stream.rows_in)],
        ["Mini-batches whose rows are not counted", stream.unmeasured_batches > 0 && number(stream.unmeasured_batches)],
        ["Rows written", number(stream.rows_out)],
        ["Mini-batches", stream.last_batch === null ? "none yet" : number(stream.last_batch + 1)],
        ["Generation", stream.generation > 1 && stream.generation],
        ["Behind", behind.join("; ") || null],
        ["Rests because", stream.stopped_because],
      ]}
    />
    ${stream.followed.map(({ table, version, not_taken: kept }) => html`<p key=${table} class=${kept ? "field-error" : "quiet small"}>${table} is followed, at version ${version}.${kept && ` ${kept.detail}`}</p>`)}
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
  const times = useMemo(() => done.map((batch) => Date.parse(batch.begun_at) / 1000), [done]);
  if (done.length === 0) return html`<p class="empty">No mini-batch is done yet.</p>`;
  return html`<section>
    <h2>Mini-batches over time</h2>
    <div class="charts">
      ${CHARTS.map(({ title, ...one }) => html`<${OverTime} key=${one.label} title=${title(latency)} times=${times} batches=${done} ...${one} />`)}
    </div>
  </section>`;
}

function OverTime({ batches, value, ...rest }) {
  const values = useMemo(() => batches.map(value), [batches]);
  return html`<${Chart} values=${values} summary=${`The newest is ${rest.format(values.at(-1))}.`} ...${rest} />`;
}

function stateBytes(batch) {
  // What the stores take in memory is no size: of RocksDB it is caches.
  const parts = (batch.metrics?.state ?? []).map((one) => one.state_bytes);
  return parts.length && parts.every((one) => one !== null) ? parts.reduce((sum, one) => sum + one, 0) : null;
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

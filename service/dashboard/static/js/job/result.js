// The rows of a result, page by page, and downloads of the whole result.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { getExact, send, withQuery } from "../api.js";
import { number, size } from "../format.js";
import { Loading, numeric, Table, Text } from "../parts/basics.js";
import { Failure } from "../parts/problem.js";

const PAGE_ROWS = 100;
const NUMERIC = /^(TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL)\b/;
const SHORT_TEXT = 40;
const MAX_TEXT = 2000;
const FORMATS = [
  ["CSV", "text/csv", "csv"],
  ["Parquet", "application/vnd.apache.parquet", "parquet"],
  ["Arrow", "application/vnd.apache.arrow.stream", "arrows"],
];

const NO_PAGE = { page: null, cursor: null, first: 0, error: null };

/** The section "Result" of a job. */
export function ResultSection({ job }) {
  // The cursors of the pages visited; the page of the last cursor is shown.
  const [cursors, setCursors] = useState([""]);
  const [shown, setShown] = useState(NO_PAGE);
  const [reloads, setReloads] = useState(0);
  const cursor = cursors.at(-1);
  const { sink } = job.spec;
  const isManaged = job.mode === "batch" || sink.kind === "managed";
  const isAvailable = isManaged && (job.status === "SUCCEEDED" || job.mode !== "batch");
  const isEmpty = shown.error?.code === "result_not_ready";

  useEffect(() => {
    if (!isAvailable) return undefined;
    const aborter = new AbortController();
    getExact(withQuery(`v1/jobs/${job.id}/result`, { page_size: PAGE_ROWS, cursor }), { signal: aborter.signal }).then(
      (page) => setShown({ page, cursor, first: (cursors.length - 1) * PAGE_ROWS, error: null }),
      (error) => error.name === "AbortError" || setShown({ ...NO_PAGE, error }),
    );
    return () => aborter.abort();
    // A stream without a result may have one after its next mini-batch.
  }, [job.id, cursor, isAvailable, reloads, isEmpty && job.version]);

  if (!isManaged) return html`<p class="empty">This job writes its rows to <code>${sink.path ?? sink.table}</code> (sink: <code>${sink.kind}</code>).</p>`;
  if (isEmpty) return html`<p class="empty">${shown.error.message}</p>`;
  if (!isAvailable) return html`<p class="empty">${job.finished ? `The job ended with ${job.status} and has no result.` : "There is no result yet."}</p>`;
  const reload = () => {
    setShown(NO_PAGE);
    setCursors([""]);
    setReloads(reloads + 1);
  };
  if (shown.error) return html`<${Failure} error=${shown.error} /><button type="button" class="plain small" onClick=${reload}>Reload</button>`;
  if (!shown.page) return html`<${Loading} />`;
  const { columns, rows, total_rows: total, next_cursor: next } = shown.page;
  const { first } = shown;
  const isChanging = shown.cursor !== cursor;
  return html`<section>
    <div class="section-head">
      <h2>Result</h2>
      <${Downloads} job=${job} />
    </div>
    <${Table} label="Rows of the result" head=${columns.map((column) => (NUMERIC.test(column.type) ? numeric(column.name) : column.name))}>
      ${rows.map((row, at) => html`<tr key=${first + at}>${row.map((value, place) => html`<td key=${place} class=${NUMERIC.test(columns[place].type) ? "numeric" : ""}>${cell(value)}</td>`)}</tr>`)}
    <//>
    <div class="buttons">
      <button type="button" class="plain small" disabled=${cursors.length === 1 || isChanging} onClick=${() => setCursors(cursors.slice(0, -1))}>Previous</button>
      <span class="quiet small" aria-live="polite">${isChanging ? "Loading …" : total === 0 ? "No rows" : `Rows ${number(first + 1)} to ${number(first + rows.length)} of ${number(total)}`}</span>
      <button type="button" class="plain small" disabled=${!next || isChanging} onClick=${() => setCursors([...cursors, next])}>Next</button>
      ${job.mode !== "batch" && html`<button type="button" class="plain small" onClick=${reload}>Reload</button>`}
    </div>
    <details><summary>Columns</summary>
      <${Table} label="Columns" head=${["Column", "Type"]}>${columns.map((column, at) => html`<tr key=${at}><th scope="row">${column.name}</th><td><code>${column.type}</code></td></tr>`)}<//>
    </details>
  </section>`;
}

function Downloads({ job }) {
  const [busy, setBusy] = useState("");
  const [failure, setFailure] = useState(null);

  async function download([name, type, extension]) {
    setBusy(name);
    try {
      const response = await send("GET", `v1/jobs/${job.id}/result`, { headers: { Accept: type } });
      save(await response.blob(), `${fileName(job.name)}.${extension}`);
      setFailure(null);
    } catch (error) {
      setFailure(error);
    } finally {
      setBusy("");
    }
  }

  return html`<div>
    <div class="buttons" role="group" aria-label="Download the result">
      ${FORMATS.map((format) => html`<button type="button" key=${format[0]} class="plain small" disabled=${busy !== ""} onClick=${() => download(format)}>${busy === format[0] ? "Loading …" : `Download ${format[0]}`}</button>`)}
      ${job.result && html`<span class="quiet small">${size(job.result.bytes)}</span>`}
    </div>
    <${Failure} error=${failure} />
  </div>`;
}

/** Saves a download. A link would not send the API key, so the file is fetched first. */
function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

const fileName = (name) => name.replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 80) || "result";

function cell(value) {
  if (value === null) return html`<em class="quiet">NULL</em>`;
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  if (text.length <= SHORT_TEXT) return html`<${Text} text=${text} />`;
  return html`<span class="long">${text.slice(0, MAX_TEXT)}${text.length > MAX_TEXT && html` <em class="quiet">… of ${number(text.length)} characters</em>`}</span>`;
}

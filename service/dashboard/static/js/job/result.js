// The rows of the result, page by page, and the whole of it to take along.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { getExactly, send, withQuery } from "../api.js";
import { number, size } from "../format.js";
import { Loading, numeric, Table, Text } from "../parts/basics.js";
import { Failure } from "../parts/problem.js";

const ROWS = 100;
const NUMERIC = /^(TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL)\b/;
const SHORT = 40;
const LONGEST = 2000;
const FORMATS = [
  ["CSV", "text/csv", "csv"],
  ["Parquet", "application/vnd.apache.parquet", "parquet"],
  ["Arrow", "application/vnd.apache.arrow.stream", "arrows"],
];

const NOTHING = { page: null, cursor: null, first: 0, error: null };

/** The section. */
export function ResultSection({ job }) {
  // The cursors of the pages so far: the last one's page is shown.
  const [cursors, setCursors] = useState([""]);
  const [shown, setShown] = useState(NOTHING);
  const [turn, setTurn] = useState(0);
  const cursor = cursors.at(-1);
  const { sink } = job.spec;
  const isManaged = job.mode === "batch" || sink.kind === "managed";
  const isThere = isManaged && (job.status === "SUCCEEDED" || job.mode !== "batch");
  const isEmpty = shown.error?.code === "result_not_ready";

  useEffect(() => {
    if (!isThere) return undefined;
    const aborter = new AbortController();
    getExactly(withQuery(`v1/jobs/${job.id}/result`, { page_size: ROWS, cursor }), { signal: aborter.signal }).then(
      (page) => setShown({ page, cursor, first: (cursors.length - 1) * ROWS, error: null }),
      (error) => error.name === "AbortError" || setShown({ ...NOTHING, error }),
    );
    return () => aborter.abort();
    // What a stream has not yet, the next mini-batch may bring.
  }, [job.id, cursor, isThere, turn, isEmpty && job.version]);

  if (!isManaged) return html`<p class="empty">Its rows go to the sink <code>${sink.kind}</code>: read them there, at <code>${sink.path ?? sink.table}</code>.</p>`;
  if (isEmpty) return html`<p class="empty">${shown.error.message}</p>`;
  if (!isThere) return html`<p class="empty">${job.finished ? `The job ended ${job.status}: it has no result.` : "There is no result yet."}</p>`;
  const anew = () => {
    setShown(NOTHING);
    setCursors([""]);
    setTurn(turn + 1);
  };
  if (shown.error) return html`<${Failure} error=${shown.error} /><button type="button" class="plain small" onClick=${anew}>Read anew</button>`;
  if (!shown.page) return html`<${Loading} />`;
  const { columns, rows, total_rows: total, next_cursor: next } = shown.page;
  const { first } = shown;
  const isTurning = shown.cursor !== cursor;
  return html`<section>
    <div class="section-head">
      <h2>Result</h2>
      <${Downloads} job=${job} />
    </div>
    <${Table} label="Rows of the result" head=${columns.map((column) => (NUMERIC.test(column.type) ? numeric(column.name) : column.name))}>
      ${rows.map((row, at) => html`<tr key=${first + at}>${row.map((value, place) => html`<td key=${place} class=${NUMERIC.test(columns[place].type) ? "numeric" : ""}>${cell(value)}</td>`)}</tr>`)}
    <//>
    <div class="buttons">
      <button type="button" class="plain small" disabled=${cursors.length === 1 || isTurning} onClick=${() => setCursors(cursors.slice(0, -1))}>Previous</button>
      <span class="quiet small" aria-live="polite">${isTurning ? "Loading …" : total === 0 ? "No rows" : `Rows ${number(first + 1)} to ${number(first + rows.length)} of ${number(total)}`}</span>
      <button type="button" class="plain small" disabled=${!next || isTurning} onClick=${() => setCursors([...cursors, next])}>Next</button>
      ${job.mode !== "batch" && html`<button type="button" class="plain small" onClick=${anew}>Read anew</button>`}
    </div>
    <details><summary>Columns</summary>
      <${Table} label="Columns" head=${["Column", "Type"]}>${columns.map((column, at) => html`<tr key=${at}><th scope="row">${column.name}</th><td><code>${column.type}</code></td></tr>`)}<//>
    </details>
  </section>`;
}

function Downloads({ job }) {
  const [busy, setBusy] = useState("");
  const [failure, setFailure] = useState(null);

  async function download([name, type, ending]) {
    setBusy(name);
    try {
      const response = await send("GET", `v1/jobs/${job.id}/result`, { headers: { Accept: type } });
      save(await response.blob(), `${fileName(job.name)}.${ending}`);
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

/** A key cannot be shown by following a link, so the file is fetched and then handed over. */
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
  if (text.length <= SHORT) return html`<${Text} text=${text} />`;
  return html`<span class="long">${text.slice(0, LONGEST)}${text.length > LONGEST && html` <em class="quiet">… of ${number(text.length)} characters</em>`}</span>`;
}

// The form for a job's tables, with a row for each.
import { html, useEffect, useState } from "../../vendor/preact.js";

const FILES = ["parquet", "csv", "json", "orc", "avro", "xml", "delta"];
const TEXT_FILES = ["csv", "json", "xml"];
const INFERRED = "";
const FORMATS = [
  [INFERRED, "inferred"],
  ...FILES.map((format) => [format, format]),
  ["stream", "input stream"],
  ["rate", "generated rows"],
];

const HEADERS = [
  [undefined, "inferred"],
  [true, "column names"],
  [false, "data"],
];

/** `tables` has a job's tables by name; `onChange` gets all of them. Each error is shown at its table. */
export function TablesForm({ tables, issues, onChange }) {
  const rows = Object.entries(tables);

  function rename(old, name) {
    onChange(Object.fromEntries(rows.map(([key, table]) => [key === old ? name : key, table])));
  }

  function add() {
    let suffix = rows.length + 1;
    while (Object.hasOwn(tables, `t${suffix}`)) suffix += 1;
    onChange({ ...tables, [`t${suffix}`]: { path: "" } });
  }

  return html`<fieldset class="field-group">
    <legend><h2>Tables</h2></legend>
    ${rows.length === 0 && html`<p class="quiet">A query reads at least one table.</p>`}
    ${rows.map(
      ([name, table], place) => html`<${TableRow}
        key=${place}
        name=${name}
        isTaken=${(other) => other !== name && Object.hasOwn(tables, other)}
        table=${table}
        issues=${issues.filter((issue) => `${issue.pointer}/`.startsWith(`/tables/${name.replaceAll("~", "~0").replaceAll("/", "~1")}/`))}
        onRename=${(next) => rename(name, next)}
        onChange=${(next) => onChange({ ...tables, [name]: next })}
        onRemove=${() => onChange(Object.fromEntries(rows.filter(([key]) => key !== name)))}
      />`,
    )}
    <button type="button" class="plain small" onClick=${add}>Add a table</button>
  </fieldset>`;
}

function TableRow({ name, isTaken, table, issues, onRename, onChange, onRemove }) {
  const [typed, setTyped] = useState(name);
  useEffect(() => setTyped(name), [name]);
  const isDuplicate = isTaken(typed.trim());
  function rename(text) {
    setTyped(text);
    if (!isTaken(text.trim())) onRename(text.trim());
  }
  const format = table.format ?? INFERRED;
  const isFiles = format === INFERRED || FILES.includes(format);
  const set = (part) => onChange({ ...table, ...part });
  return html`<div class="table-row">
    <label>Name <input value=${typed} onInput=${(event) => rename(event.target.value)} spellcheck=${false} aria-invalid=${isDuplicate} /></label>
    <label>Format
      <select value=${format} onChange=${(event) => onChange(withFormat(event.target.value, table))}>
        ${FORMATS.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
      </select>
    </label>
    ${isFiles && html`<label class="grow">Path <input value=${table.path} placeholder="orders/" onInput=${(event) => set({ path: event.target.value })} spellcheck=${false} /></label>`}
    ${table.format === "stream" && html`<label class="grow">Stream <input value=${table.stream} placeholder="clicks" onInput=${(event) => set({ stream: event.target.value })} spellcheck=${false} /></label>`}
    ${table.format === "rate" && html`<label>Rows per second <input type="number" min="1" value=${table.rows_per_second ?? 1} onInput=${(event) => set({ rows_per_second: Number(event.target.value) })} /></label>`}
    <button type="button" class="plain small" onClick=${onRemove} aria-label=${`Remove table ${name}`}>Remove</button>
    ${format === "csv" && html`<label>First line
      <select value=${HEADERS.findIndex(([header]) => header === (table.options?.header ?? undefined))} onChange=${(event) => set({ options: { ...table.options, header: HEADERS[event.target.value][0] } })}>
        ${HEADERS.map(([header, text], at) => html`<option key=${at} value=${at}>${text}</option>`)}
      </select>
    </label>`}
    ${TEXT_FILES.includes(format) && html`<label class="grow">Columns <input value=${table.schema ?? ""} placeholder="inferred; or: uid BIGINT, name STRING" onInput=${(event) => set({ schema: event.target.value || undefined })} spellcheck=${false} /></label>`}
    ${isDuplicate && html`<p class="field-error whole" role="alert">Another table has this name.</p>`}
    ${issues.map((issue) => html`<p key=${issue.detail} class="field-error whole" role="alert">${issue.detail}</p>`)}
  </div>`;
}

/** Returns the table with another format, without the fields that this format does not have. */
function withFormat(format, { path = "", schema, columns, options, partitions, role, event_time }) {
  if (format === "stream") return { format, stream: "", event_time };
  if (format === "rate") return { format, rows_per_second: 1, event_time };
  const files = { path, partitions, role, event_time };
  if (format === INFERRED) return { ...files, options };
  return TEXT_FILES.includes(format) ? { format, ...files, schema, columns, options } : { format, ...files };
}

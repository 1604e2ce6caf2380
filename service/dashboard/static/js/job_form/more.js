// The form for a job's mode, time limit and sink, and the whole specification as JSON.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { shapeError } from "../drafts.js";
import { CommittedInput } from "../parts/basics.js";

const MODES = [
  ["batch", "Batch: run once"],
  ["incremental", "Incremental: process new data, then stop"],
  ["continuous", "Continuous: run until stopped"],
];

/** Calls `onChange` with the fields that change, and `onReplace` with all fields of an edited JSON text. */
export function MoreForm({ spec, onChange, onReplace }) {
  const sink = spec.sink ?? { kind: "managed" };
  const limits = spec.limits ?? {};
  const limit = (name, value) => onChange({ limits: { ...limits, [name]: value === "" ? undefined : value } });
  return html`<fieldset class="field-group">
    <legend><h2>Execution</h2></legend>
    <label>Mode
      <select value=${spec.mode ?? "batch"} onChange=${(event) => onChange({ mode: event.target.value })}>
        ${MODES.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
      </select>
    </label>
    <label>Time limit <${CommittedInput} value=${limits.timeout ?? ""} placeholder="1h" onCommit=${(text) => limit("timeout", text)} /></label>
    <label>Sink
      <select value=${sink.kind} onChange=${(event) => onChange({ sink: event.target.value === "managed" ? undefined : { kind: event.target.value, path: "" } })} disabled=${sink.kind === "postgres"}>
        <option value="managed">Stored by the service</option>
        <option value="delta">Delta table (streaming)</option>
        <option value="parquet">Parquet files (streaming)</option>
        ${sink.kind === "postgres" && html`<option value="postgres">PostgreSQL table</option>`}
      </select>
    </label>
    ${["delta", "parquet"].includes(sink.kind) && html`<label>Directory <input value=${sink.path} placeholder="out/uniques" onInput=${(event) => onChange({ sink: { ...sink, path: event.target.value } })} spellcheck=${false} /></label>`}
    <${JsonForm} spec=${spec} onReplace=${onReplace} />
  </fieldset>`;
}

function JsonForm({ spec, onReplace }) {
  const text = JSON.stringify(spec, null, 2);
  const [typed, setTyped] = useState(text);
  const [failure, setFailure] = useState("");
  useEffect(() => setTyped(text), [text]);

  function apply() {
    try {
      const parsed = JSON.parse(typed);
      const invalid = shapeError(parsed);
      if (invalid) throw new Error(invalid);
      const removed = Object.fromEntries(Object.keys(spec).filter((name) => !(name in parsed)).map((name) => [name, undefined]));
      onReplace({ ...removed, ...parsed, tables: parsed.tables ?? {} });
      setFailure("");
    } catch (error) {
      setFailure(error.message);
    }
  }

  return html`<details>
    <summary>Edit as JSON</summary>
    <label>Specification <textarea rows="16" value=${typed} onInput=${(event) => setTyped(event.target.value)} spellcheck=${false}></textarea></label>
    ${failure && html`<p class="field-error" role="alert">${failure}</p>`}
    <button type="button" class="plain small" onClick=${apply} disabled=${typed === text}>Apply</button>
  </details>`;
}

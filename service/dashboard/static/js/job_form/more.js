// The rest of a job: how it runs, where its rows go, how long it may take; and all of it as JSON.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { misshapen } from "../drafts.js";
import { Typed } from "../parts/typed.js";

const MODES = [
  ["batch", "Batch: once"],
  ["incremental", "Incremental: what is new, then rest"],
  ["continuous", "Continuous: until it is stopped"],
];

/** `onChange` gets the parts that change, `onReplace` all of them at once. */
export function MoreForm({ spec, onChange, onReplace }) {
  const sink = spec.sink ?? { kind: "managed" };
  const limits = spec.limits ?? {};
  const limit = (name, value) => onChange({ limits: { ...limits, [name]: value === "" ? undefined : value } });
  return html`<fieldset class="field-group">
    <legend><h2>How it runs</h2></legend>
    <label>Mode
      <select value=${spec.mode ?? "batch"} onChange=${(event) => onChange({ mode: event.target.value })}>
        ${MODES.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
      </select>
    </label>
    <label>Time limit <${Typed} value=${limits.timeout ?? ""} placeholder="1h" onTaken=${(text) => limit("timeout", text)} /></label>
    <label>Result
      <select value=${sink.kind} onChange=${(event) => onChange({ sink: event.target.value === "managed" ? undefined : { kind: event.target.value, path: "" } })} disabled=${sink.kind === "postgres"}>
        <option value="managed">Kept by the service</option>
        <option value="delta">Delta table (streaming)</option>
        <option value="parquet">Parquet files (streaming)</option>
        ${sink.kind === "postgres" && html`<option value="postgres">PostgreSQL table</option>`}
      </select>
    </label>
    ${["delta", "parquet"].includes(sink.kind) && html`<label>Directory <input value=${sink.path} placeholder="out/uniques" onInput=${(event) => onChange({ sink: { ...sink, path: event.target.value } })} spellcheck=${false} /></label>`}
    <${AsJson} spec=${spec} onReplace=${onReplace} />
  </fieldset>`;
}

function AsJson({ spec, onReplace }) {
  const text = JSON.stringify(spec, null, 2);
  const [typed, setTyped] = useState(text);
  const [failure, setFailure] = useState("");
  useEffect(() => setTyped(text), [text]);

  function take() {
    try {
      const read = JSON.parse(typed);
      const fault = misshapen(read);
      if (fault) throw new Error(fault);
      const gone = Object.fromEntries(Object.keys(spec).filter((name) => !(name in read)).map((name) => [name, undefined]));
      onReplace({ ...gone, ...read, tables: read.tables ?? {} });
      setFailure("");
    } catch (error) {
      setFailure(error.message);
    }
  }

  return html`<details>
    <summary>All of it, as JSON</summary>
    <label>Specification <textarea rows="16" value=${typed} onInput=${(event) => setTyped(event.target.value)} spellcheck=${false}></textarea></label>
    ${failure && html`<p class="field-error" role="alert">${failure}</p>`}
    <button type="button" class="plain small" onClick=${take} disabled=${typed === text}>Take this</button>
  </details>`;
}

// The form for the values of a query's placeholders, with a row for each `:name` in the SQL.
import { html } from "../../vendor/preact.js";
import { CommittedInput } from "../parts/basics.js";

const TYPES = ["STRING", "BOOLEAN", "INT", "BIGINT", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"];
const INFERRED = "";
const SKIPPED = /'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|\/\*[\s\S]*?\*\/|::/g;
const PLACEHOLDER = /(?<![\w:]):([A-Za-z_]\w*)/g;
const INTEGER = /^[+-]?\d+$/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

/** Returns the names of the placeholders `:name` in the SQL, in their order, without those in strings and comments. */
export function placeholders(sql) {
  const names = [...sql.replaceAll(SKIPPED, " ").matchAll(PLACEHOLDER)].map(([, name]) => name);
  return [...new Set(names)];
}

/**
 * Returns the parameter of a text: undefined for an empty one. Numbers that JSON and JavaScript do not keep get a type.
 */
export function inferred(text) {
  if (text === "") return undefined;
  if (text === "true" || text === "false") return text === "true";
  if (INTEGER.test(text)) return Number.isSafeInteger(Number(text)) ? Number(text) : { type: "BIGINT", value: text };
  return NUMBER.test(text) ? { type: "DOUBLE", value: text } : text;
}

/** `parameters` has the values by name; `onChange` gets all of them, or undefined if there are none. */
export function ParametersForm({ sql, parameters, issues, onChange }) {
  if (Array.isArray(parameters)) return html`<p class="quiet small">The values of <code>?</code> are a list. To change them, edit the job as JSON.</p>`;
  const values = parameters ?? {};
  const used = placeholders(sql);
  const names = [...used, ...Object.keys(values).filter((name) => !used.includes(name))];
  if (names.length === 0) return null;

  function set(name, value) {
    const { [name]: _, ...others } = values;
    const changed = value === undefined ? others : { ...others, [name]: value };
    onChange(Object.keys(changed).length ? changed : undefined);
  }

  return html`<fieldset class="field-group">
    <legend><h2>Parameters</h2></legend>
    ${names.map((name) => html`<${ParameterRow}
      key=${name}
      name=${name}
      isUsed=${used.includes(name)}
      value=${values[name]}
      issues=${issues.filter(({ pointer }) => `${pointer}/`.startsWith(`/parameters/${name}/`))}
      onChange=${(value) => set(name, value)}
    />`)}
  </fieldset>`;
}

function ParameterRow({ name, isUsed, value, issues, onChange }) {
  const isTyped = value !== null && typeof value === "object";
  const type = isTyped ? value.type : INFERRED;
  const content = isTyped ? value.value : value;
  const text = content === null || content === undefined ? "" : String(content);
  const types = TYPES.includes(type) || !type ? TYPES : [type, ...TYPES];
  const withType = (next) => onChange(next === INFERRED ? inferred(text) : { type: next, value: text });
  const withText = (next) => onChange(isTyped ? { type, value: next } : inferred(next));
  return html`<div class="parameter">
    <code>:${name}</code>
    <select value=${type} aria-label=${`Type of :${name}`} onChange=${(event) => withType(event.target.value)}>
      <option value=${INFERRED}>${value === null ? "NULL" : "inferred"}</option>
      ${types.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
    </select>
    <${CommittedInput} value=${text} aria-label=${`Value of :${name}`} placeholder=${type === "DATE" ? "2026-01-31" : type.startsWith("TIMESTAMP") ? "2026-01-31 12:30:00" : "value"} onCommit=${withText} />
    ${!isUsed && html`<p class="quiet small">The SQL does not use it. <button type="button" class="plain small" onClick=${() => onChange(undefined)}>Remove</button></p>`}
    ${issues.map((issue) => html`<p key=${issue.detail} class="field-error" role="alert">${issue.detail}</p>`)}
  </div>`;
}

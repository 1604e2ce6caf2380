// The form for a job's settings, built from the service's OpenAPI schema.
import { html } from "../../vendor/preact.js";
import { CommittedInput, Loading } from "../parts/basics.js";

const TITLES = { join: "Joins", skew: "Skew detection", mini_batch: "Mini-batches", state: "State" };
const OTHERS = "Aggregation";
const STREAMING = ["Mini-batches", "State"];

/**
 * `declared` has all settings, `values` the values that are set, by name; `streams` is true for a streaming job.
 * `onChange(name, value)` sets a value or, if it is undefined, removes it.
 */
export function SettingsForm({ declared, values, issues, streams, onChange }) {
  return html`<fieldset class="field-group">
    <legend><h2>Settings</h2></legend>
    <p class="quiet small">A setting that you do not change has its default value. With <code>auto</code>, the cost model decides.</p>
    ${declared.length === 0 && html`<${Loading} />`}
    ${groups(declared).map(
      ([title, names]) => html`<details key=${title} open=${names.some((setting) => isSet(setting, values[setting.name])) || !STREAMING.includes(title) || streams}>
        <summary>${title}</summary>
        ${names.map((setting) => html`<${Setting} key=${setting.name} declared=${setting} value=${values[setting.name]} issues=${issues.filter((issue) => issue.pointer === `/settings/${setting.name.replaceAll(".", "/")}`)} onChange=${onChange} />`)}
      </details>`,
    )}
  </fieldset>`;
}

function groups(declared) {
  const found = new Map();
  for (const setting of declared) {
    const title = TITLES[setting.name.split(".")[0]] ?? OTHERS;
    found.set(title, [...(found.get(title) ?? []), setting]);
  }
  return [...found];
}

/** Whether a value is given that is not the default. A stored job has all values. */
const isSet = (declared, value) => value !== undefined && value !== null && String(value) !== String(declared.default);

function Setting({ declared, value, issues, onChange }) {
  const { name, choices, type, description } = declared;
  const id = `setting-${name}`;
  const shown = value === undefined || value === null ? "" : String(value);
  const set = (text) => onChange(name, text === "" ? undefined : convert(text, choices, type));
  const defaultText = declared.default === null ? "none" : String(declared.default);
  return html`<div class=${`setting${isSet(declared, value) ? " is-set" : ""}`}>
    <label for=${id}><code>${name}</code></label>
    ${choices
      ? html`<select id=${id} value=${shown} onChange=${(event) => set(event.target.value)} aria-describedby=${`${id}-text`}>
          <option value="">${defaultText} (default)</option>
          ${choices.map((choice) => html`<option key=${choice} value=${choice}>${choice}</option>`)}
        </select>`
      : html`<${CommittedInput} id=${id} value=${shown} placeholder=${defaultText} inputmode=${type === "integer" ? "numeric" : "text"} onCommit=${set} aria-describedby=${`${id}-text`} />`}
    <p id=${`${id}-text`} class="quiet small">${description.replaceAll("`", "")}</p>
    ${issues.map((issue) => html`<p key=${issue.detail} class="field-error" role="alert">${issue.detail}</p>`)}
  </div>`;
}

/** Converts a field's text to the type of the setting. The service refuses a text that cannot be converted. */
function convert(text, choices, type) {
  if (type === "boolean") return text === "true";
  if (!choices && (type === "integer" || type === "number") && text !== "" && Number.isFinite(Number(text))) return Number(text);
  return text;
}

// Settings of a job as a form, made from the service's own description of them.
import { html } from "../../vendor/preact.js";
import { Loading } from "../parts/basics.js";
import { Typed } from "../parts/typed.js";

const TITLES = { join: "Joins", skew: "What counts as skewed", mini_batch: "Mini-batches", state: "State" };
const OTHERS = "Aggregation";
const STREAMING = ["Mini-batches", "State"];

/**
 * `declared` are all settings, `values` those that are set, by name; `streams` tells whether the job is a streaming one;
 * `onChange(name, value)` sets one or, undefined, none.
 */
export function SettingsForm({ declared, values, issues, streams, onChange }) {
  return html`<fieldset class="field-group">
    <legend><h2>Settings</h2></legend>
    <p class="quiet small">What is not set is decided by cost, or as the defaults say.</p>
    ${declared.length === 0 && html`<${Loading} />`}
    ${groups(declared).map(
      ([title, names]) => html`<details key=${title} open=${names.some((one) => values[one.name] !== undefined) || !STREAMING.includes(title) || streams}>
        <summary>${title}</summary>
        ${names.map((one) => html`<${Setting} key=${one.name} declared=${one} value=${values[one.name]} issues=${issues.filter((issue) => issue.pointer === `/settings/${one.name.replaceAll(".", "/")}`)} onChange=${onChange} />`)}
      </details>`,
    )}
  </fieldset>`;
}

function groups(declared) {
  const found = new Map();
  for (const one of declared) {
    const title = TITLES[one.name.split(".")[0]] ?? OTHERS;
    found.set(title, [...(found.get(title) ?? []), one]);
  }
  return [...found];
}

function Setting({ declared, value, issues, onChange }) {
  const { name, choices, type, description } = declared;
  const id = `setting-${name}`;
  const shown = value === undefined || value === null ? "" : String(value);
  const set = (text) => onChange(name, text === "" ? undefined : typed(text, choices, type));
  const byDefault = declared.default === null ? "none" : String(declared.default);
  return html`<div class=${`setting${shown && shown !== byDefault ? " is-set" : ""}`}>
    <label for=${id}><code>${name}</code></label>
    ${choices
      ? html`<select id=${id} value=${shown} onChange=${(event) => set(event.target.value)} aria-describedby=${`${id}-text`}>
          <option value="">${byDefault} (default)</option>
          ${choices.map((choice) => html`<option key=${choice} value=${choice}>${choice}</option>`)}
        </select>`
      : html`<${Typed} id=${id} value=${shown} placeholder=${byDefault} inputmode=${type === "integer" ? "numeric" : "text"} onTaken=${set} aria-describedby=${`${id}-text`} />`}
    <p id=${`${id}-text`} class="quiet small">${description.replaceAll("`", "")}</p>
    ${issues.map((one) => html`<p key=${one.detail} class="field-error" role="alert">${one.detail}</p>`)}
  </div>`;
}

/** The text of a field as the value that it means; what means none is left to the service to refuse. */
function typed(text, choices, type) {
  if (type === "boolean") return text === "true";
  if (!choices && (type === "integer" || type === "number") && text !== "" && Number.isFinite(Number(text))) return Number(text);
  return text;
}

// A field whose text is taken once it is left, or with Enter.
import { html, useEffect, useState } from "../../vendor/preact.js";

/** What is being typed is the field's own until then; a `value` that changes elsewhere takes its place. */
export function Typed({ value, onTaken, ...rest }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return html`<input value=${text} onInput=${(event) => setText(event.target.value)} onChange=${() => onTaken(text.trim())} spellcheck=${false} ...${rest} />`;
}

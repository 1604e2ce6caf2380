// Small parts that many pages have.
import { html, useEffect, useRef, useState } from "../../vendor/preact.js";

/** A page's heading, which takes the focus when its page is gone to, so that screen readers tell where one is. */
export function Heading({ children, title }) {
  const heading = useRef(null);
  useEffect(() => {
    document.title = `${title} · Evenkeel`;
  }, [title]);
  useEffect(() => heading.current?.focus({ preventScroll: true }), []);
  return html`<h1 ref=${heading} tabindex="-1">${children ?? title}</h1>`;
}

/** Names with their values. `entries` are pairs; those without a value are left out. */
export function Facts({ entries }) {
  return html`<dl class="facts">
    ${entries
      .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
      .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

/** A value's text; an empty one would not be seen. */
export const Text = ({ text }) => (text === "" ? html`<em class="quiet">''</em>` : text);

/** The head of a column of numbers. */
export const numeric = (name) => ({ name, isNumeric: true });

/** A table that scrolls by itself where it is too wide, and can then be reached with the keyboard. */
export function Table({ caption, head, children, label }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label ?? caption}>
    <table>
      ${caption && html`<caption>${caption}</caption>`}
      <thead><tr>${head.map((column, at) => html`<th scope="col" key=${at} class=${column.isNumeric ? "numeric" : ""}>${column.name ?? column}</th>`)}</tr></thead>
      <tbody>${children}</tbody>
    </table>
  </div>`;
}

/** Text to copy: a listing with its button. */
export function Listing({ text, label }) {
  const [told, setTold] = useState("copy");
  const listing = useRef(null);
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      setTold("copied");
    } catch {
      // Over plain http to another machine, browsers have no clipboard: the text is ready for the user's own keys.
      getSelection().selectAllChildren(listing.current);
      setTold("selected");
    }
    setTimeout(() => setTold("copy"), 1500);
  }
  return html`<div class="listing">
    <button type="button" class="plain small" onClick=${copy} aria-label=${`Copy: ${label}`}>${told}</button>
    <pre ref=${listing} tabindex="0" role="region" aria-label=${label}>${text}</pre>
  </div>`;
}

/** A question before what cannot be undone. `onAnswer(true)` or `onAnswer(false)`. */
export function Confirm({ question, action, otherwise = "Keep it", onAnswer }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} aria-label=${question} onClose=${() => onAnswer(dialog.current.returnValue === "yes")}>
    <p>${question}</p>
    <div class="buttons">
      <button type="button" onClick=${() => dialog.current.close("yes")} class="danger">${action}</button>
      <button type="button" class="plain" autofocus onClick=${() => dialog.current.close()}>${otherwise}</button>
    </div>
  </dialog>`;
}

/** A function that tells whether the part that called this is still on the page: what is answered late moves nobody. */
export function useIsHere() {
  const here = useRef(true);
  useEffect(() => () => void (here.current = false), []);
  return () => here.current;
}

/** While something is asked for the first time. */
export function Loading() {
  return html`<p class="quiet" role="status">Loading …</p>`;
}

/** The time now, anew every second while `running`; for what counts on. */
export function useNow(running) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!running) return undefined;
    const timer = setInterval(() => document.hidden || setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [running]);
  return now;
}

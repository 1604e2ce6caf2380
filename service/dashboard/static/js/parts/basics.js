// Small components and hooks that many pages use.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../../vendor/preact.js";

/** A page's heading. It takes the focus when the page opens, so that screen readers announce the page. */
export function Heading({ children, title }) {
  const heading = useRef(null);
  useEffect(() => {
    document.title = `${title} · Evenkeel`;
  }, [title]);
  useEffect(() => heading.current?.focus({ preventScroll: true }), []);
  return html`<h1 ref=${heading} tabindex="-1">${children ?? title}</h1>`;
}

/** A list of names with their values. `entries` are pairs; pairs without a value are left out. */
export function Facts({ entries }) {
  return html`<dl class="facts">
    ${entries
      .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
      .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

/** A value's text; an empty text is shown as ''. */
export const Text = ({ text }) => (text === "" ? html`<em class="quiet">''</em>` : text);

/** Returns the head of a column of numbers. */
export const numeric = (name) => ({ name, isNumeric: true });

/**
 * A table. If it is too wide, it scrolls by itself, also with the keyboard, and says so. With `cards`, each row becomes a
 * card with the columns' names on a narrow screen.
 */
export function Table({ caption, head, children, label, cards = false }) {
  const table = useRef(null);
  const isCut = useIsCut(table);
  useLayoutEffect(() => {
    if (!cards) return;
    for (const row of table.current.tBodies[0].rows) [...row.cells].forEach((cell, place) => (cell.dataset.column = head[place].name ?? head[place]));
  });
  return html`<div class="scroll-area">
    <div class=${`scroll${cards ? " cards" : ""}${isCut ? " is-cut" : ""}`} tabindex="0" role="region" aria-label=${label ?? caption}>
      <table ref=${table}>
        ${caption && html`<caption>${caption}</caption>`}
        <thead><tr>${head.map((column, place) => html`<th scope="col" key=${place} class=${column.isNumeric ? "numeric" : ""}>${column.name ?? column}</th>`)}</tr></thead>
        <tbody>${children}</tbody>
      </table>
    </div>
    ${isCut && html`<p class="quiet small scroll-hint">Scroll the table sideways for more columns.</p>`}
  </div>`;
}

/** Whether the referenced table is wider than the element around it. */
function useIsCut(table) {
  const [isCut, setIsCut] = useState(false);
  useEffect(() => {
    const area = table.current.parentElement;
    const observer = new ResizeObserver(() => setIsCut(area.scrollWidth > area.clientWidth));
    observer.observe(area);
    observer.observe(table.current);
    return () => observer.disconnect();
  }, []);
  return isCut;
}

/** A listing with a button that copies its text. */
export function Listing({ text, label }) {
  const [buttonText, setButtonText] = useState("Copy");
  const listing = useRef(null);
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      setButtonText("Copied");
    } catch {
      // Over plain HTTP to another machine, browsers have no clipboard: select the text for the user to copy.
      getSelection().selectAllChildren(listing.current);
      setButtonText("Selected");
    }
    setTimeout(() => setButtonText("Copy"), 1500);
  }
  return html`<div class="listing">
    <button type="button" class="plain small" onClick=${copy} aria-label=${`Copy: ${label}`}>${buttonText}</button>
    <pre ref=${listing} tabindex="0" role="region" aria-label=${label}>${text}</pre>
  </div>`;
}

/** Asks before an action that cannot be undone. Calls `onAnswer(true)` or `onAnswer(false)`. */
export function Confirm({ question, action, onAnswer }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} aria-label=${question} onClose=${() => onAnswer(dialog.current.returnValue === "yes")}>
    <p>${question}</p>
    <div class="buttons">
      <button type="button" onClick=${() => dialog.current.close("yes")} class="danger">${action}</button>
      <button type="button" class="plain" autofocus onClick=${() => dialog.current.close()}>Go back</button>
    </div>
  </dialog>`;
}

/** Returns a function that says whether the component is still mounted: a late response must not change the page. */
export function useIsMounted() {
  const isMounted = useRef(true);
  useEffect(() => () => void (isMounted.current = false), []);
  return () => isMounted.current;
}

/** Shown until the first response arrives. */
export function Loading() {
  return html`<p class="quiet" role="status">Loading …</p>`;
}

/** An input field that reports its text when the user leaves it or presses Enter. A `value` that changes replaces the text. */
export function CommittedInput({ value, onCommit, ...rest }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return html`<input value=${text} onInput=${(event) => setText(event.target.value)} onChange=${(event) => onCommit(event.target.value.trim())} spellcheck=${false} ...${rest} />`;
}

/** Returns the current time, every second while `running`. */
export function useNow(running) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!running) return undefined;
    const timer = setInterval(() => document.hidden || setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [running]);
  return now;
}

// The page that asks for an API key. The key is stored in this tab.
import { html, useState } from "../../vendor/preact.js";
import { Heading } from "../parts/basics.js";
import { isValidKey, key, storeKey } from "../session.js";

/** Calls `onSignedIn` after a key was entered. Whether the key is valid shows with the next request. */
export function SignInPage({ onSignedIn }) {
  const [text, setText] = useState("");
  const [fault, setFault] = useState(key() ? "This key is unknown, expired or revoked. Enter another key." : "");
  function submit(event) {
    event.preventDefault();
    const entered = text.trim();
    if (!isValidKey(entered)) return setFault("Invalid key: an API key consists of letters, digits, dashes and underscores.");
    storeKey(entered);
    onSignedIn();
  }
  return html`<main class="sign-in">
    <${Heading} title="Sign in">Evenkeel<//>
    <form onSubmit=${submit}>
      ${fault ? html`<p id="key-fault" class="field-error" role="alert">${fault}</p>` : html`<p>This service requires an API key. Its operator creates one with <code>evenkeel keys create</code>.</p>`}
      <label>API key <input type="password" value=${text} onInput=${(event) => setText(event.target.value)} autocomplete="off" spellcheck=${false} required aria-invalid=${fault !== ""} aria-describedby=${fault ? "key-fault" : undefined} /></label>
      <p class="quiet small">The key is stored in this tab until you close it.</p>
      <button type="submit">Sign in</button>
    </form>
  </main>`;
}

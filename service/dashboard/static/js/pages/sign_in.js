// Where the service asks for a key. It stays in this tab.
import { html, useState } from "../../vendor/preact.js";
import { Heading } from "../parts/basics.js";
import { canBeShown, keep, key } from "../session.js";

/** `onSignedIn` is called once a key was given; whether it holds, the next request tells. */
export function SignInPage({ onSignedIn }) {
  const [text, setText] = useState("");
  const [fault, setFault] = useState(key() ? "This key is unknown, expired or revoked. Show another." : "");
  function submit(event) {
    event.preventDefault();
    const given = text.trim();
    if (!canBeShown(given)) return setFault("This is no key: keys are of letters, digits, dashes and underscores.");
    keep(given);
    onSignedIn();
  }
  return html`<main class="sign-in">
    <${Heading} title="Sign in">Evenkeel<//>
    <form onSubmit=${submit}>
      ${fault ? html`<p id="key-fault" class="field-error" role="alert">${fault}</p>` : html`<p>This service asks for an API key. Whoever runs it makes one: <code>evenkeel keys create</code></p>`}
      <label>API key <input type="password" value=${text} onInput=${(event) => setText(event.target.value)} autocomplete="off" spellcheck=${false} required aria-invalid=${fault !== ""} aria-describedby=${fault ? "key-fault" : undefined} /></label>
      <p class="quiet small">It is kept in this tab until you close it.</p>
      <button type="submit">Show it</button>
    </form>
  </main>`;
}

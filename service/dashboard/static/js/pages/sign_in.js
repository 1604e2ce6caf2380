// Where the service asks for a key. It stays in this tab.
import { html, useState } from "../../vendor/preact.js";
import { Heading } from "../parts/basics.js";
import { keep, key } from "../session.js";

/** `onSignedIn` is called once a key was given; whether it holds, the next request tells. */
export function SignInPage({ onSignedIn }) {
  const [text, setText] = useState("");
  function submit(event) {
    event.preventDefault();
    keep(text.trim());
    onSignedIn();
  }
  return html`<main class="sign-in">
    <${Heading} title="Sign in">Evenkeel<//>
    <form onSubmit=${submit}>
      <p>${key() ? "This key is unknown, expired or revoked. Show another." : "This service asks for an API key. Whoever runs it makes one: "}${!key() && html`<code>evenkeel keys create</code>`}</p>
      <label>API key <input type="password" value=${text} onInput=${(event) => setText(event.target.value)} autocomplete="off" spellcheck=${false} required /></label>
      <p class="quiet small">It is kept in this tab until you close it.</p>
      <button type="submit">Show it</button>
    </form>
  </main>`;
}

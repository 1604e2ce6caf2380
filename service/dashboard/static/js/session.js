// The API key: in this tab's session storage, and nowhere else. It is never part of an address.
import { session } from "./storage.js";

const NAME = "evenkeel.key";

/** The key that this tab shows, or an empty string. */
export const key = () => session.get(NAME) ?? "";

/** Shows this key from now on; an empty one forgets it. */
export function keep(text) {
  if (text) session.set(NAME, text);
  else session.remove(NAME);
}

/** Whether a header can carry it; a request with another could not even be sent. */
export const canBeShown = (text) => /^[\x21-\x7e]+$/.test(text);

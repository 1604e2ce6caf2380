// The API key: in this tab's session storage, and nowhere else. It is never part of an address.
const NAME = "evenkeel.key";

/** The key that this tab shows, or an empty string. */
export function key() {
  return sessionStorage.getItem(NAME) ?? "";
}

/** Shows this key from now on; an empty one forgets it. */
export function keep(text) {
  if (text) sessionStorage.setItem(NAME, text);
  else sessionStorage.removeItem(NAME);
}

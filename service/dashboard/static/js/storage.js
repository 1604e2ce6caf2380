// What this browser keeps. Where it keeps nothing for pages, the page itself does, for as long as it is open.
const SUBSTITUTE = { local: new Map(), session: new Map() };

/** Of this browser, over all tabs: `local`. Of this tab alone: `session`. */
export const local = kept(() => localStorage, SUBSTITUTE.local);
export const session = kept(() => sessionStorage, SUBSTITUTE.session);

function kept(storage, substitute) {
  return {
    /** The text under a name, or null. */
    get(name) {
      return attempt(() => storage().getItem(name), () => substitute.get(name) ?? null);
    },
    set(name, text) {
      attempt(() => storage().setItem(name, text), () => substitute.set(name, text));
    },
    remove(name) {
      attempt(() => storage().removeItem(name), () => substitute.delete(name));
    },
    /** Every name that begins so. */
    names(prefix) {
      return attempt(() => Object.keys(storage()), () => [...substitute.keys()]).filter((name) => name.startsWith(prefix));
    },
  };
}

function attempt(act, otherwise) {
  try {
    return act();
  } catch {
    return otherwise();
  }
}

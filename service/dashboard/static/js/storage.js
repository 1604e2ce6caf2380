// The browser's storage. If it is not available, the page stores the values while it is open.
const FALLBACK = { local: new Map(), session: new Map() };

/** `local` is shared by all tabs of the browser; `session` belongs to this tab. */
export const local = storageWithFallback(() => localStorage, FALLBACK.local);
export const session = storageWithFallback(() => sessionStorage, FALLBACK.session);

function storageWithFallback(storage, fallback) {
  return {
    /** Returns the text with this name, or null. */
    get(name) {
      return tryOr(() => storage().getItem(name), () => fallback.get(name) ?? null);
    },
    set(name, text) {
      tryOr(() => storage().setItem(name, text), () => fallback.set(name, text));
    },
    remove(name) {
      tryOr(() => storage().removeItem(name), () => fallback.delete(name));
    },
    /** Returns all names with this prefix. */
    names(prefix) {
      return tryOr(() => Object.keys(storage()), () => [...fallback.keys()]).filter((name) => name.startsWith(prefix));
    },
  };
}

function tryOr(action, alternative) {
  try {
    return action();
  } catch {
    return alternative();
  }
}

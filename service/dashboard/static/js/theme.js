// Light, dark, or as the system says. The choice is kept in this browser.
const NAME = "evenkeel.theme";
export const THEMES = ["system", "light", "dark"];

/** The chosen theme. */
export function chosen() {
  const kept = localStorage.getItem(NAME);
  return THEMES.includes(kept) ? kept : "system";
}

/** Shows a theme, and keeps it. */
export function choose(theme) {
  localStorage.setItem(NAME, theme);
  apply(theme);
}

/** Shows a theme. */
export function apply(theme = chosen()) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  dispatchEvent(new Event("themechange"));
}

// The theme: light, dark or the system's. The choice is stored in this browser.
import { local } from "./storage.js";

const NAME = "evenkeel.theme";
const TEXTS = { system: "System theme", light: "Light theme", dark: "Dark theme" };
/** The themes with their names for display. */
export const THEMES = Object.entries(TEXTS);
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

/** Returns the chosen theme. */
export function chosenTheme() {
  const stored = local.get(NAME);
  return Object.hasOwn(TEXTS, stored) ? stored : "system";
}

/** Applies and stores a theme. */
export function chooseTheme(theme) {
  local.set(NAME, theme);
  apply();
}

/** Applies the chosen theme, now and when the system's theme changes. */
export function startTheme() {
  systemIsDark.addEventListener("change", apply);
  apply();
}

function apply() {
  const theme = chosenTheme();
  const bySystem = systemIsDark.matches ? "dark" : "light";
  document.documentElement.dataset.theme = theme === "system" ? bySystem : theme;
  dispatchEvent(new Event("themechange"));
}

// Formats numbers, sizes and times for display.
const NUMBER = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const WHEN = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const SIZES = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
const UNKNOWN = "–";

const isKnown = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** `1,234,567`. */
export const number = (value) => (isKnown(value) ? NUMBER.format(value) : UNKNOWN);

/** `1.23M`. */
export const shortNumber = (value) => (isKnown(value) ? SHORT.format(value) : UNKNOWN);

/** `12.3 MB`, in powers of a thousand. */
export function size(bytes) {
  if (!isKnown(bytes)) return UNKNOWN;
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < SIZES.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toPrecision(3)} ${SIZES[unit]}`;
}

/** `850 ms`, `12.3 s`, `4 m 05 s`, `3 h 12 m`, `2 d 3 h`. */
export function duration(milliseconds) {
  if (!isKnown(milliseconds)) return UNKNOWN;
  if (milliseconds < 999.5) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const twoDigits = (value) => String(value).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${twoDigits(whole % 60)} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${twoDigits(Math.floor((whole % 3600) / 60))} m`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** `12.3 %`. */
export const share = (value) => (isKnown(value) ? `${(value * 100).toFixed(value < 0.1 ? 1 : 0)} %` : UNKNOWN);

/** `3.4×`. */
export const factor = (value) => (isKnown(value) ? `${value >= 99.5 ? Math.round(value) : value.toPrecision(2)}×` : UNKNOWN);

/** Date and time in the browser's time zone. */
export const moment = (text) => (text ? WHEN.format(new Date(text)) : UNKNOWN);

/** Date and time, or only the time of day if `before`, the time in the row above, is of the same day. */
export function momentBelow(text, before) {
  const isOfSameDay = text && before && new Date(text).toDateString() === new Date(before).toDateString();
  return isOfSameDay ? CLOCK.format(new Date(text)) : moment(text);
}

/** `12 s ago`, `3 m ago`. */
export function ago(text, now = Date.now()) {
  if (!text) return UNKNOWN;
  const seconds = Math.max(0, (now - Date.parse(text)) / 1000);
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

/** Milliseconds from `from` to `to`, or to now without `to`. Null without `from`. */
export function elapsed(from, to, now = Date.now()) {
  return from ? Math.max(0, (to ? Date.parse(to) : now) - Date.parse(from)) : null;
}

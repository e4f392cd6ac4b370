// Numbers, times and sizes for people.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const STATES = ["available", "in_flight", "delayed", "failed", "done"];
const SIGNS = { available: "\u25cf", in_flight: "\u25b6", delayed: "\u25f7", failed: "\u2715", done: "\u2713" };
const STEPS = [[86_400, "d"], [3_600, "h"], [60, "m"], [1, "s"]];

/** A count. */
export function count(number) {
  return number === null || number === undefined ? "" : whole.format(number);
}

/** A count in few characters: 12.3k. */
export function short(number) {
  if (number === null || number === undefined) return "";
  for (const [size, sign] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(number) >= size) return `${tenth.format(number / (sign === "k" ? 1e3 : size))}${sign}`;
  }
  return Number.isInteger(number) ? whole.format(number) : tenth.format(number);
}

/** Messages a second. */
export function rate(number) {
  if (number === null || number === undefined) return "";
  if (number === 0) return "0";
  return number < 0.05 ? "<0.1" : number < 100 ? tenth.format(number) : whole.format(number);
}

/** The number that a person has typed, for a request. JSON has integers of 64 bits; JavaScript would round them. */
export function numeric(text, what) {
  const [typed, number] = [text.trim(), Number(text)];
  if (!typed || !Number.isFinite(number)) throw new Error(`${typed || "An empty text"} is no number for ${what}.`);
  if (!/^-?[0-9]{16,}$/.test(typed) || Number.isSafeInteger(number)) return number;
  if (!JSON.rawJSON) throw new Error(`${typed} is too large a number for this browser.`);
  return JSON.rawJSON(String(BigInt(typed)));
}

/** So many things: plural(2, "message"). */
export function plural(number, thing) {
  return `${count(number)} ${thing}${number === 1 ? "" : "s"}`;
}

/** The name of a state for people. */
export function state(name) {
  return name.replace("_", " ");
}

/** The sign of a state; colours alone tell too little. */
export function sign(name) {
  return SIGNS[name] ?? "";
}

/** A length of time in its two largest units: 3 m 20 s. */
export function length(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return seconds > 0 ? `${Math.max(1, Math.round(seconds * 1000))} ms` : "0 s";
  const parts = [];
  let left = Math.round(seconds);
  for (const [size, unit] of STEPS) {
    if (left >= size && parts.length < 2) {
      parts.push(`${Math.floor(left / size)} ${unit}`);
      left %= size;
    } else if (parts.length) break;
  }
  return parts.join(" ");
}

/** How long ago, or in how long, a time in milliseconds is. */
export function ago(time, now = Date.now()) {
  if (time === null || time === undefined) return "";
  const seconds = (now - time) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${length(seconds)} ago` : `in ${length(-seconds)}`;
}

/** A time in milliseconds, as this browser's clock would show it. */
export function when(time) {
  if (time === null || time === undefined) return "";
  const date = new Date(time);
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** A number of bytes. */
export function bytes(number) {
  if (number === null || number === undefined) return "";
  if (number < 1024) return `${whole.format(number)} B`;
  for (const [power, unit] of [[4, "TiB"], [3, "GiB"], [2, "MiB"], [1, "KiB"]]) {
    if (number >= 1024 ** power) return `${tenth.format(number / 1024 ** power)} ${unit}`;
  }
  return "";
}

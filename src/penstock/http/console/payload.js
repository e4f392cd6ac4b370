// A payload as text, as JSON, as hexadecimal digits, or as a file. It is shown as text nodes, whatever it is.

import { fill, h, visible } from "./dom.js";
import * as format from "./format.js";

const SHOWN = 65_536; // characters; the rest is for the download
const SHOWN_HEX = 16_384; // bytes
const JSON_MOST = 4_000_000; // bytes of a payload that may be shown as JSON
const DEEPEST = 20; // levels that are indented

function decoded(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

/** The beginning of a JSON text, with line breaks. Its values stay as they are written, numbers of any length too. */
export function pretty(text, most = SHOWN) {
  JSON.parse(text); // what is no JSON throws
  const out = [];
  let [depth, size, last] = [0, 0, ""];
  const add = (token) => { out.push(token); size += token.length; };
  const line = () => add(`\n${"  ".repeat(Math.min(depth, DEEPEST))}`);
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s"[\]{},:]+/g)) {
    const closes = token === "}" || token === "]";
    if (closes) depth--;
    if (closes ? last !== "{" && last !== "[" : last === "{" || last === "[" || last === ",") line();
    if (token === "{" || token === "[") depth++;
    add(token === ":" ? ": " : token);
    last = token;
    if (size > most) break;
  }
  return out.join("");
}

/** Lines of 16 bytes, as offset, hexadecimal digits and characters. */
export function hex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = bytes.subarray(at, at + 16);
    const digits = Array.from(row, (byte) => byte.toString(16).padStart(2, "0"));
    const signs = Array.from(row, (byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "\u00b7"));
    lines.push(`${at.toString(16).padStart(8, "0")}  ${digits.slice(0, 8).join(" ").padEnd(23)}  ${digits.slice(8).join(" ").padEnd(23)}  ${signs.join("")}`);
  }
  return lines.join("\n");
}

/** The payload of a message: buttons that choose how it is shown, and the payload. */
export function payload(message, name) {
  const raw = atob(message.payload_base64);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
  const text = decoded(bytes);
  const shown = h("pre", { class: "payload", tabindex: "0", "aria-label": "Payload" });
  const note = h("p", { class: "note" });
  let json = null;
  if (text !== null && bytes.length <= JSON_MOST && /^\s*[[{"]/.test(text)) {
    try {
      json = pretty(text);
    } catch {
      // just a text
    }
  }
  const ways = {
    json: json === null ? null : () => visible(json.slice(0, SHOWN), true),
    text: text === null ? null : () => visible(text.slice(0, SHOWN), true),
    hex: () => hex(bytes.subarray(0, SHOWN_HEX)),
  };
  const buttons = Object.entries({ json: "JSON", text: "Text", hex: "Hex" }).map(([way, title]) =>
    h("button", { type: "button", "data-way": way, disabled: ways[way] === null, onclick: () => show(way) }, title));
  const element = h("div", {},
    h("div", { class: "tools" },
      h("div", { class: "choice", role: "group", "aria-label": "Show the payload as" }, buttons),
      h("span", { class: "size" }, format.bytes(bytes.length)),
      h("button", { type: "button", onclick: () => download(bytes, name) }, "Download")),
    shown, note);

  function show(way) {
    shown.dataset.way = way;
    for (const button of buttons) button.setAttribute("aria-pressed", button.dataset.way === way);
    if (bytes.length === 0) fill(shown, h("i", {}, "The payload is empty."));
    else shown.textContent = ways[way]();
    const cut = way === "hex" ? bytes.length > SHOWN_HEX : (way === "json" ? json : text).length > SHOWN;
    note.textContent = cut ? `This is the beginning; the download has all ${format.bytes(bytes.length)}.` : "";
  }
  show(json !== null ? "json" : text !== null ? "text" : "hex");
  return element;
}

function download(bytes, name) {
  const url = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

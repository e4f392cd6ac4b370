// A payload as text, as JSON, as hexadecimal digits, or as a file. It is shown as text nodes, whatever it is.

import { fill, h, visible } from "./dom.js";
import * as format from "./format.js";

const SHOWN = { text: 100_000, json: 400_000, hex: 16_384 }; // bytes; the rest is for the download

function decoded(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

/** A JSON text with line breaks and spaces. Its values stay as they are written, numbers of any length included. */
export function pretty(text) {
  JSON.parse(text); // what is no JSON throws
  let out = "";
  let depth = 0;
  const indent = () => `\n${"  ".repeat(Math.min(depth, 50))}`;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s"[\]{},:]+/g)) {
    if (token === "{" || token === "[") {
      depth++;
      out += token + indent();
    } else if (token === "}" || token === "]") {
      depth--;
      out = /[[{]\s*$/.test(out.slice(-120)) ? out.trimEnd() + token : out + indent() + token;
    } else if (token === ",") out += token + indent();
    else out += token === ":" ? ": " : token;
  }
  return out;
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
  const bytes = Uint8Array.from(atob(message.payload_base64), (sign) => sign.charCodeAt(0));
  const text = decoded(bytes);
  const shown = h("pre", { class: "payload", tabindex: "0", "aria-label": "Payload" });
  const note = h("p", { class: "note" });
  let json = null;
  if (text !== null && bytes.length <= SHOWN.json && /^\s*[[{"]/.test(text)) {
    try {
      json = pretty(text);
    } catch {
      // just a text
    }
  }
  const ways = {
    json: json === null ? null : () => visible(json, true),
    text: text === null ? null : () => visible(text.slice(0, SHOWN.text), true),
    hex: () => hex(bytes.subarray(0, SHOWN.hex)),
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
    for (const button of buttons) button.setAttribute("aria-pressed", button.dataset.way === way);
    if (bytes.length === 0) fill(shown, h("i", {}, "The payload is empty."));
    else shown.textContent = ways[way]();
    const cut = way === "hex" ? bytes.length > SHOWN.hex : way === "text" && text.length > SHOWN.text;
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

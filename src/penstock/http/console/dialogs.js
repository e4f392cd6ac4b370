// Dialogs: what is asked before something is done, and what has been done.

import { fill, h } from "./dom.js";

/** A modal dialog. Esc and the button at its corner close it; the focus goes back to where it was. */
export function open(title, attributes, ...children) {
  const heading = h("h2", { id: `d${++open.count}` }, title);
  const dialog = h(
    "dialog", { ...attributes, "aria-labelledby": heading.id },
    h("div", { class: "head" }, heading, h("button", { type: "button", class: "plain close", "aria-label": "Close", onclick: () => dialog.close() }, "\u2715")),
    ...children,
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && pressed === dialog && dialog.close());
  let pressed = null; // a text that is selected beyond the dialog's edge does not close it
  dialog.addEventListener("pointerdown", (event) => (pressed = event.target));
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
open.count = 0;

/** A labelled field of a form. */
export function field(label, input, hint = null) {
  const id = `f${++field.count}`;
  input.id = id;
  const told = hint ? h("small", { id: `${id}h` }, hint) : null;
  if (told) input.setAttribute("aria-describedby", told.id);
  return h("div", { class: "field" }, h("label", { for: id }, label), input, told);
}
field.count = 0;

/** Ask before something is done. `run` does it, and its answer is said; what it refuses is shown in the dialog. */
export function ask({ title, text, button, danger = false, fields = [], wide = false, run, done }) {
  const failed = h("p", { class: "failed", role: "alert", hidden: true });
  const go = h("button", { type: "submit", class: danger ? "danger" : "main" }, button);
  const stop = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = h(
    "form", { novalidate: true, onsubmit: submit },
    h("div", { class: "inside" }, (Array.isArray(text) ? text : [text]).filter(Boolean).map((each) => (each instanceof Node ? each : h("p", {}, each))), fields, failed),
    h("div", { class: "foot" }, stop, go),
  );
  const dialog = open(title, { class: wide ? "wide" : "small" }, form);
  (form.querySelector("input, textarea, select") ?? (danger ? stop : go)).focus();

  async function submit(event) {
    event.preventDefault();
    if (go.disabled) return;
    go.disabled = true;
    failed.hidden = true;
    try {
      const result = await run();
      dialog.close();
      done?.(result);
    } catch (error) {
      failed.hidden = false;
      fill(failed, error.message);
      go.disabled = false;
    }
  }
  return dialog;
}

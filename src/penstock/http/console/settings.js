// The settings of a queue, as its server's OpenAPI document describes them; admins change them.

import { api } from "./api.js";
import * as dialogs from "./dialogs.js";
import { data, fill, h, visible } from "./dom.js";
import * as format from "./format.js";

let schema = null; // of settings: asked for once

/** A setting as text for its field. */
function written(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value === "object") return Object.entries(value).map(([name, each]) => `${name}=${each}`).join("\n");
  return String(value);
}

function read(name, text, about) {
  const types = [about.type].flat();
  if (text.trim() === "" && types.includes("null")) return null;
  if (types.includes("object")) {
    return Object.fromEntries(text.split("\n").filter((line) => line.trim()).map((line) => {
      const at = line.indexOf("=");
      if (at < 1) throw new Error(`${name}: write a line name=value for each.`);
      return [line.slice(0, at), line.slice(at + 1)];
    }));
  }
  if (types.includes("array")) return text.split(",").map((each) => format.numeric(each, name));
  if (types.includes("string")) return text;
  return format.numeric(text, name);
}

export class Settings {
  constructor(app, queue) {
    this.app = app;
    this.queue = queue;
    this.form = h("form", { class: "settings", novalidate: true, onsubmit: (event) => this.submit(event) });
    this.element = this.form;
  }

  async refresh(signal, counts, settings) {
    schema ??= (await api.document()).components.schemas.Settings.properties;
    const drawn = JSON.stringify(settings) + this.app.may("admin");
    if (this.drawn === drawn || this.changes().length) return; // what somebody is typing stays
    this.drawn = drawn;
    this.now = settings;
    this.fields = {};
    const admin = this.app.may("admin");
    const inputs = Object.entries(schema).filter(([name]) => name in settings).map(([name, about]) => {
      const fixed = !admin || name === "start";
      const long = name === "labels";
      const attributes = { autocomplete: "off", spellcheck: "false", readonly: fixed, "data-setting": name };
      const input = long ? h("textarea", { rows: 2, ...attributes }) : h("input", attributes);
      input.value = this.written(name);
      if ([about.type].flat().includes("null")) input.placeholder = "none";
      input.addEventListener("input", () => this.mark());
      this.fields[name] = input;
      return dialogs.field(name, input, about.description.replace(/\bnull\b/g, "empty"));
    });
    this.save = h("button", { type: "submit", class: "main", disabled: true }, "Save");
    this.undo = h("button", { type: "button", disabled: true, onclick: () => this.reset() }, "Undo");
    this.failed = h("p", { class: "failed", role: "alert" });
    fill(this.form, h("div", { class: "grid" }, inputs), this.failed, admin ? h("div", { class: "foot" }, this.undo, this.save) : h("p", { class: "note" }, "Changing settings needs the role admin."));
  }

  written(name) {
    return written(this.now[name]);
  }

  changes() {
    return Object.entries(this.fields ?? {}).filter(([name, input]) => input.value !== this.written(name));
  }

  mark() {
    const none = this.changes().length === 0;
    this.save.disabled = none;
    this.undo.disabled = none;
    for (const [name, input] of Object.entries(this.fields)) input.classList.toggle("changed", input.value !== this.written(name));
  }

  reset() {
    for (const [name, input] of Object.entries(this.fields)) input.value = this.written(name);
    fill(this.failed);
    this.mark();
  }

  submit(event) {
    event.preventDefault();
    fill(this.failed);
    const changes = this.changes();
    if (!changes.length) return;
    let values;
    try {
      values = Object.fromEntries(changes.map(([name, input]) => [name, read(name, input.value, schema[name])]));
    } catch (error) {
      fill(this.failed, error.message);
      return;
    }
    const many = changes.length === 1 ? "1 setting" : `${changes.length} settings`;
    dialogs.ask({
      title: `Change ${many} of ${visible(this.queue)}`, button: `Change ${many}`,
      text: [
        h("ul", { class: "changes" }, Object.keys(values).map((name) => h("li", {}, h("b", {}, name), ": ", data(this.written(name) || "none"), " \u2192 ", data(this.fields[name].value.trim() || "none")))),
        "The change holds at once, also for messages that are there and consumers that wait.",
      ],
      run: () => api.update(this.queue, values),
      done: (settings) => {
        this.now = settings;
        this.reset();
        this.drawn = "";
        this.app.tell(`Changed ${many}.`);
      },
    });
  }
}

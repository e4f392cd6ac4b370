// One queue: its past hour or day, its messages, why they failed, its settings.

import { api } from "./api.js";
import { Chart } from "./charts.js";
import * as dialogs from "./dialogs.js";
import { data, fill, h, say, Table, visible } from "./dom.js";
import * as format from "./format.js";
import { Messages } from "./messages.js";
import { href, sums, timed } from "./overview.js";
import { Settings } from "./settings.js";

const TABS = [["", "Messages"], ["reasons", "Failure reasons"], ["settings", "Settings"]];
const RECHART = 10_000; // milliseconds

export class Queue {
  constructor(app, name, parameters) {
    this.app = app;
    this.name = name;
    this.title = visible(name);
    this.span = "hour";
    this.charted = 0;
    this.messages = new Messages(app, name);
    this.settings = new Settings(app, name);
    this.reasons = new Reasons(app, name, this.messages);
    this.about = h("p", { class: "about" });
    this.acts = h("div", { class: "acts", role: "group", "aria-label": "Queue" });
    this.spans = h("div", { class: "choice", role: "group", "aria-label": "Time" },
      ["hour", "day"].map((span) => h("button", { type: "button", "aria-pressed": String(span === this.span), onclick: () => this.turnTo(span) }, `last ${span}`)));
    this.depth = new Chart("Depth", [
      { name: "waiting", kind: "available" }, { name: "in flight", kind: "in_flight" }, { name: "failed", kind: "failed" },
    ], format.short);
    this.flow = new Chart("Messages a second", [
      { name: "in", kind: "in" }, { name: "out", kind: "out" }, { name: "failures", kind: "failed" },
    ], format.rate);
    this.tabs = h("nav", { class: "tabs", "aria-label": "Queue" }, TABS.map(([tab, title]) => h("a", { href: href(name, tab ? `?tab=${tab}` : "") }, title)));
    this.panel = h("div", { class: "panel" });
    this.element = h(
      "div", { class: "queue" },
      h("div", { class: "title" }, h("h1", {}, data(name)), this.spans, this.acts),
      this.about,
      h("div", { class: "charts" }, this.depth.element, this.flow.element),
      this.tabs, this.panel,
    );
    this.turn(parameters);
  }

  turn(parameters) {
    const tab = TABS.some(([each]) => each === parameters.get("tab")) ? parameters.get("tab") : "";
    if (tab !== this.tab) {
      this.tab = tab;
      this.part = { "": this.messages, reasons: this.reasons, settings: this.settings }[tab];
      fill(this.panel, this.part.element);
      TABS.forEach(([each], index) => {
        if (each === tab) this.tabs.children[index].setAttribute("aria-current", "page");
        else this.tabs.children[index].removeAttribute("aria-current");
      });
    }
    if (tab === "") this.messages.turn(parameters);
  }

  turnTo(span) {
    this.span = span;
    this.charted = 0;
    ["hour", "day"].forEach((each, index) => this.spans.children[index].setAttribute("aria-pressed", each === span));
    this.app.nudge();
  }

  async refresh(signal) {
    const info = await api.queue(this.name, signal);
    this.counts = info.counts;
    this.showAbout(info);
    this.showActs();
    if (this.app.may("read")) {
      if (Date.now() - this.charted > RECHART || this.change === undefined) {
        this.charted = Date.now();
        const history = await api.history(this.name, this.span, signal);
        const { times, series } = timed(history);
        this.change ??= history.change;
        this.depth.show(times, [sums(series.available, series.delayed), series.in_flight, series.failed], `the last ${this.span}`);
        this.flow.show(times, [series.in, series.out, series.failures], `the last ${this.span}`);
      }
    }
    await this.part.refresh(signal, info.counts, info.settings);
  }

  async changed(signal) {
    if (!this.app.may("read")) return;
    const wait = this.part === this.settings ? 2 : undefined; // settings that somebody else changes are no change of counts
    this.change = (await api.changes({ since: this.change, queue: this.name, wait }, signal)).change;
  }

  showAbout(info) {
    const { description, labels, dead_letter: dead, filter } = info.settings;
    const drawn = JSON.stringify([description, labels, dead, filter]);
    if (this.told === drawn) return;
    this.told = drawn;
    fill(this.about,
      description ? h("span", {}, data(description)) : null,
      filter ? h("span", {}, "takes ", h("code", {}, data(filter))) : null,
      dead ? h("span", {}, "dead letters go to ", h("a", { href: href(dead) }, data(dead))) : null,
      Object.entries(labels ?? {}).map(([name, value]) => h("span", { class: "label" }, data(name), "=", data(value))));
    this.about.hidden = !this.about.children.length;
  }

  showActs() {
    const failed = this.counts.failed ?? 0;
    const drawn = `${failed} ${this.app.me.roles}`;
    if (this.acted === drawn) return;
    this.acted = drawn;
    const admin = this.app.may("admin");
    fill(this.acts,
      this.app.may("write") ? h("button", { type: "button", class: "main", onclick: () => this.make() }, "Put a message") : null,
      admin && failed ? h("button", { type: "button", onclick: () => this.messages.redrive(null) }, `Redrive ${format.count(failed)} failed`) : null,
      admin && failed ? h("button", { type: "button", onclick: () => this.messages.move(null) }, "Move failed\u2026") : null,
      admin ? h("button", { type: "button", class: "danger", onclick: () => this.app.attempt(() => this.purge()) }, "Purge\u2026") : null,
      admin && this.name !== "default" ? h("button", { type: "button", class: "danger", onclick: () => this.app.attempt(() => this.drop()) }, "Delete\u2026") : null);
  }

  make() {
    if (!this.app.may("write")) return;
    const text = h("textarea", { rows: 6, spellcheck: "false" });
    const number = (attributes) => h("input", { autocomplete: "off", ...attributes });
    const [priority, delay, group, key] = [number({ inputmode: "numeric" }), number({ inputmode: "decimal" }), number({ maxlength: 255 }), number({ maxlength: 255 })];
    const headers = h("textarea", { rows: 2, spellcheck: "false", placeholder: "kind: image" });
    dialogs.ask({
      title: `Put a message into ${visible(this.name)}`, button: "Put 1 message", wide: true,
      fields: [
        dialogs.field("Payload", text),
        h("div", { class: "row" }, dialogs.field("Priority", priority, "0; lower comes first."), dialogs.field("Delay", delay, "In seconds; else the queue's.")),
        h("details", {}, h("summary", {}, "Headers, group, key"),
          dialogs.field("Headers", headers, "A line for each: name: value"),
          h("div", { class: "row" }, dialogs.field("Group", group, "Its messages are worked on one at a time."), dialogs.field("Key", key, "A second put with it adds nothing."))),
      ],
      run: () => {
        const draft = { payload: text.value };
        if (priority.value.trim()) draft.priority = format.numeric(priority.value, "the priority");
        if (delay.value.trim()) draft.delay = format.numeric(delay.value, "the delay");
        if (group.value) draft.group = group.value;
        if (key.value) draft.key = key.value;
        const lines = headers.value.split("\n").filter((line) => line.trim());
        if (lines.length) {
          draft.headers = Object.fromEntries(lines.map((line) => {
            const at = line.indexOf(":");
            if (at < 1) throw new Error(`The header ${line} has no value: write name: value.`);
            return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
          }));
        }
        return api.put(this.name, draft);
      },
      done: (id) => this.app.tell(`Put as message ${id}.`),
    });
  }

  async purge() {
    const { counts } = await api.queue(this.name);
    const many = counts.available + counts.delayed + counts.failed + counts.done;
    dialogs.ask({
      title: `Purge ${visible(this.name)}`, danger: true, button: `Remove ${format.plural(many, "message")}`,
      text: [`${format.plural(many, "message")} will be gone: ${["available", "delayed", "failed", "done"].filter((name) => counts[name]).map((name) => `${format.count(counts[name])} ${name}`).join(", ") || "none"}. This cannot be undone.`,
        counts.in_flight ? `${format.plural(counts.in_flight, "message")} in flight will stay.` : null],
      run: () => api.purge(this.name),
      done: (count) => this.app.tell(`${format.plural(count, "message")} removed.`),
    });
  }

  async drop() {
    const { counts } = await api.queue(this.name);
    const many = Object.values(counts).reduce((sum, each) => sum + each, 0);
    const typed = h("input", { autocomplete: "off", spellcheck: "false" });
    dialogs.ask({
      title: `Delete ${visible(this.name)}`, danger: true, button: "Delete the queue",
      text: `The queue, its settings and ${format.plural(many, "message")} will be gone. This cannot be undone.`,
      fields: [dialogs.field("Type its name to confirm", typed)],
      run: () => {
        if (typed.value !== this.name) throw new Error("That is not the name of this queue.");
        return api.drop(this.name);
      },
      done: () => {
        location.hash = "#/";
        this.app.tell(`Deleted the queue ${this.name}.`);
      },
    });
  }
}

/** Why messages failed, with how many of each. */
class Reasons {
  constructor(app, queue, messages) {
    this.app = app;
    this.queue = queue;
    this.note = h("p", { class: "note" });
    this.table = new Table("Failure reasons", [
      { title: "reason", kind: "reason", cell: (row) => (row.reason === null ? "no reason given" : visible(row.reason)) },
      { title: "messages", kind: "number", cell: (row) => format.count(row.count) },
      { title: "latest", kind: "time", cell: (row, cell) => { cell.title = format.when(row.latest); return format.ago(row.latest); } },
      { title: "example", kind: "id", cell: (row, cell) => {
        if (cell.message === row.message) return undefined;
        cell.message = row.message;
        return h("a", { href: messages.address({ state: "failed", text: "", message: row.message }) }, `message ${visible(row.message)}`);
      } },
    ], { empty: () => h("p", {}, this.app.may("read") ? "No message of this queue has failed." : "Your token lacks the role read, which this needs.") });
    this.element = h("div", {}, this.table.element, this.note);
  }

  async refresh(signal) {
    if (!this.app.may("read")) {
      this.table.show([], (row) => row.reason);
      return;
    }
    const found = await api.reasons(this.queue, "failed", signal);
    this.table.show(found.reasons, (row) => row.reason);
    say(this.note, [
      found.reasons.length ? "Reasons that differ in numbers only are one." : "",
      found.others ? `${format.plural(found.others, "message")} failed for other reasons.` : "",
      found.complete ? "" : `These are those of the first ${format.plural(found.messages, "failed message")}.`,
    ].filter(Boolean).join(" "));
  }
}

// The overview: what is wrong, totals, and every queue.

import { api, COMMAND } from "./api.js";
import { Chart, sparkline } from "./charts.js";
import * as dialogs from "./dialogs.js";
import { data, fill, h, say, section, Table } from "./dom.js";
import * as format from "./format.js";

const PAGE = 50;
const FEW = 5; // problems that are shown before more are asked for
const RECHART = 10_000; // milliseconds
const LINKS = { failed: "?tab=reasons", failing: "?tab=reasons", leases: "?state=in_flight" }; // where its cause is shown

export const href = (queue, query = "") => `#/queues/${encodeURIComponent(queue)}${query}`;

/** A count of messages in a state, which stands out if it says that something is wrong. */
export function counted(cell, number, state) {
  cell.classList.toggle("zero", !number);
  cell.classList.toggle("bad", state === "failed" && number > 0);
  return format.count(number ?? 0);
}

function rated(cell, number) {
  cell.classList.toggle("zero", !number);
  return format.rate(number);
}

/** A history, with the time in milliseconds of each value. */
export function timed(history) {
  const series = history.series;
  const times = series.available.map((_, index) => history.end - (series.available.length - 1 - index) * history.seconds * 1000);
  return { times, series };
}

/** The sums of two lists; null where one is not known. */
export function sums(one, other) {
  return one.map((value, index) => (value === null || other[index] === null ? null : value + other[index]));
}

/** The buttons below a table that is shown in pages. */
export function pager(turn) {
  const before = h("button", { type: "button", class: "before", onclick: () => turn(-1) }, "\u2190 Before");
  const next = h("button", { type: "button", class: "next", onclick: () => turn(1) }, "Next \u2192");
  const place = h("span", { class: "place", "aria-live": "polite" });
  const buttons = h("div", { class: "buttons" }, before, next);
  const element = h("div", { class: "pager" }, place, buttons);
  return { element, show(text, back, on) {
    say(place, text);
    before.disabled = !back;
    next.disabled = !on;
    buttons.hidden = !back && !on;
  } };
}

export class Overview {
  title = "Overview";

  constructor(app, parameters) {
    this.app = app;
    this.search = h("input", { type: "search", placeholder: "Search queues", "aria-label": "Search queues", maxlength: 255, oninput: () => this.typed() });
    this.create = h("button", { type: "button", hidden: true, onclick: () => this.make() }, "New queue");
    this.problems = h("ul", { class: "problems" });
    this.fine = h("p", { class: "fine" });
    this.tiles = h("dl", { class: "tiles" });
    this.depth = new Chart("Depth", [{ name: "waiting", kind: "available" }, { name: "in flight", kind: "in_flight" }], format.short);
    this.flow = new Chart("Messages a second", [{ name: "in", kind: "in" }, { name: "out", kind: "out" }], format.rate);
    this.table = new Table("Queues", this.columns(), { sort: { by: (name) => this.go({ sort: name }) }, empty: () => this.teach() });
    this.first = h("div", { class: "empty first", hidden: true });
    this.pager = pager((step) => this.go({ page: this.page + step }));
    this.element = h(
      "div", { class: "overview" },
      h("h1", { class: "unseen" }, "Overview"),
      h("section", { class: "wrong", "aria-label": "What is wrong" }, this.fine, this.problems),
      this.tiles,
      h("div", { class: "charts" }, this.depth.element, this.flow.element),
      section("Queues",
        h("div", { class: "tools" }, this.search, this.create),
        this.table.element, this.pager.element, this.first),
    );
    this.charted = 0;
    this.turn(parameters);
  }

  columns() {
    const states = ["available", "in_flight", "delayed", "failed", "done"].map((name) => ({
      title: format.state(name), name, kind: "number", cell: (row, cell) => (row.up ? counted(cell, row.counts[name], name) : ""),
    }));
    return [
      { title: "queue", name: "queue", kind: "name", cell: (row, cell) => {
        const link = cell.firstChild ?? h("a", { href: href(row.queue) }, data(row.queue));
        cell.classList.toggle("stopped", !row.up);
        cell.title = row.up ? "" : "An error has stopped this queue: look at the server's log, and restart the server.";
        return link;
      } },
      ...states,
      { title: "in/s", name: "in", kind: "number", about: "Messages put a second", cell: (row, cell) => rated(cell, row.in) },
      { title: "out/s", name: "out", kind: "number", about: "Messages acknowledged a second", cell: (row, cell) => rated(cell, row.out) },
      { title: "oldest", name: "oldest", kind: "number", about: "For how long the message has waited that has waited longest", cell: (row) => (row.oldest >= 1 ? format.length(row.oldest) : "") },
      { title: "consumers", name: "consumers", kind: "number", about: "Consumers that wait for a message", cell: (row, cell) => (row.up ? counted(cell, row.consumers, "") : "") },
      { title: "depth, 1 h", kind: "graph", cell: (row, cell) => sparkline(cell, row.depth, "available", `Depth in the last hour, at most ${format.short(Math.max(0, ...row.depth))}`) },
      { title: "out, 1 h", kind: "graph", cell: (row, cell) => sparkline(cell, row.throughput, "out", `Messages out a second in the last hour, at most ${format.rate(Math.max(0, ...row.throughput))}`) },
    ];
  }

  /** Show what the address asks for. */
  turn(parameters) {
    this.page = Math.max(0, Number(parameters.get("page")) || 0);
    this.sort = parameters.get("sort") ?? "queue";
    this.text = parameters.get("search") ?? "";
    if (document.activeElement !== this.search) this.search.value = this.text;
    this.table.sorted(this.sort, this.sort !== "queue");
  }

  /** Go to an address with these changes; the app calls turn(). */
  go(changes) {
    clearTimeout(this.typing); // what is typed counts now
    const now = { search: this.search.value, sort: this.sort, page: 0, ...changes };
    if (now.sort === "queue") now.sort = "";
    const query = new URLSearchParams(Object.entries(now).filter(([, value]) => value)).toString();
    const target = query ? `#/?${query}` : "#/";
    if ("search" in changes) {
      history.replaceState(null, "", target);
      this.turn(new URLSearchParams(query));
      this.app.nudge();
    } else location.hash = target;
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.go({ search: this.search.value }), 150);
  }

  async refresh(signal) {
    const query = { search: this.text, sort: this.sort, skip: this.page * PAGE, limit: PAGE };
    const found = await api.overview(query, signal);
    this.change = found.change;
    this.create.hidden = !this.app.may("admin");
    this.showProblems(found.problems, found.problems_found);
    this.showTotals(found.totals);
    this.showFirst(found.totals);
    this.table.show(found.queues, (row) => row.queue);
    const first = found.found ? this.page * PAGE + 1 : 0;
    const last = Math.min(found.found, (this.page + 1) * PAGE);
    this.pager.show(`${format.count(first)}\u2013${format.count(last)} of ${format.plural(found.found, "queue")}`, this.page > 0, last < found.found);
    this.pager.element.hidden = found.found <= PAGE && !this.page;
    if (this.page && first > found.found) this.go({ page: Math.max(0, Math.ceil(found.found / PAGE) - 1) });
    if (Date.now() - this.charted > RECHART) {
      this.charted = Date.now();
      const { times, series } = timed(await api.total("hour", signal));
      this.depth.show(times, [sums(series.available, series.delayed), series.in_flight], "the last hour");
      this.flow.show(times, [series.in, series.out], "the last hour");
    }
  }

  changed(signal) {
    return api.changes({ since: this.change }, signal);
  }

  showProblems(problems, found) {
    this.fine.hidden = problems.length > 0;
    say(this.fine, "Nothing is wrong.");
    const drawn = JSON.stringify(problems) + this.all;
    if (this.drawn === drawn) return;
    this.drawn = drawn;
    const shown = this.all ? problems : problems.slice(0, FEW);
    fill(this.problems, shown.map((problem) => h("li", { class: problem.severity },
      h("span", { class: "sign", "aria-hidden": "true" }, { error: "\u2715", warning: "!" }[problem.severity] ?? "i"),
      h("span", { class: "unseen" }, `${problem.severity}: `),
      h("p", {}, problem.queue !== null ? [h("a", { href: href(problem.queue, LINKS[problem.kind] ?? "") }, data(problem.queue)), ": "] : null,
        data(problem.what), " ", h("span", { class: "advice" }, data(problem.advice))))),
    found > shown.length ? h("li", { class: "more" }, shown.length < problems.length
      ? h("button", { type: "button", onclick: () => { this.all = true; this.showProblems(problems, found); } }, `and ${format.count(found - shown.length)} more`)
      : `and ${format.count(found - shown.length)} more`) : null);
  }

  showTotals(totals) {
    const tiles = [
      ["queues", format.count(totals.queues)],
      ...["available", "in_flight", "delayed", "failed"].map((name) => [format.state(name), format.short(totals.counts[name] ?? 0), name]),
      ["in/s", format.rate(totals.in)], ["out/s", format.rate(totals.out)],
    ];
    if (this.tiles.children.length !== tiles.length) {
      fill(this.tiles, tiles.map(([name, , state]) => h("div", { class: state }, h("dt", {}, state ? h("span", { class: "sign", "aria-hidden": "true" }, format.sign(state)) : null, name), h("dd"))));
    }
    tiles.forEach(([, value], index) => say(this.tiles.children[index].lastChild, value));
    this.tiles.querySelector(".failed").classList.toggle("bad", totals.counts.failed > 0);
  }

  teach() {
    if (this.text) return [h("p", {}, "No queue has ", h("b", {}, data(this.text)), " in its name.")];
    return h("p", {}, "There is no queue yet.");
  }

  /** In a store without a message: how to begin. */
  showFirst({ queues, counts }) {
    const empty = !this.text && queues <= 1 && Object.values(counts).every((number) => number === 0);
    this.first.hidden = !empty;
    if (!empty || this.first.children.length) return;
    fill(this.first, h("p", {}, "The store is empty. Make a queue, put a message into it, and work on it:"),
      h("pre", {}, [`${COMMAND} create jobs`, `${COMMAND} put jobs 'resize cat.jpg'`, `${COMMAND} work jobs -- wc -c`].join("\n")),
      this.app.me.needs_token ? h("p", { class: "note" }, "The commands find your token in the variable PENSTOCK_TOKEN.") : null);
  }

  make() {
    if (!this.app.may("admin")) return;
    const name = h("input", { autocomplete: "off", spellcheck: "false", maxlength: 255, required: true });
    const about = h("input", { maxlength: 1000 });
    dialogs.ask({
      title: "New queue", button: "Create the queue",
      fields: [dialogs.field("Name", name, "Visible ASCII characters, without spaces."), dialogs.field("Description", about, "For people; may be empty.")],
      run: () => api.create(name.value, about.value ? { description: about.value } : {}),
      done: () => {
        this.app.tell(`Created the queue ${name.value}.`);
        location.hash = href(name.value);
      },
    });
  }
}

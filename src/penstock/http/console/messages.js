// The messages of a queue: by state, page by page, and one of them opened.

import { api, COMMAND } from "./api.js";
import * as dialogs from "./dialogs.js";
import { data, fill, h, say, Table, visible } from "./dom.js";
import * as format from "./format.js";
import { href, pager } from "./overview.js";
import { payload } from "./payload.js";

const PAGE = 50;
const PARTS = 10_000; // the most that a queue is divided into

/** A state, as a sign and its name. */
export function badge(name) {
  return h("span", { class: `state ${name}` }, h("span", { class: "sign", "aria-hidden": "true" }, format.sign(name)), format.state(name));
}

export class Messages {
  constructor(app, queue) {
    this.app = app;
    this.queue = queue;
    this.chosen = new Set();
    this.pages = [""]; // the `after` of each page so far
    this.states = h("div", { class: "choice states", role: "group", "aria-label": "State" });
    this.search = h("input", { type: "search", placeholder: "Search in messages", "aria-label": "Search in id, group, consumer, reason, headers and payload", maxlength: 200, oninput: () => this.typed() });
    this.newest = h("button", { type: "button", onclick: () => this.app.attempt(() => this.toNewest()) }, "Newest");
    this.acts = h("div", { class: "acts", role: "group", "aria-label": "Chosen messages" });
    this.table = new Table("Messages", this.columns(), {
      empty: () => this.teach(),
      pick: { chosen: this.chosen, changed: () => this.showActs() },
    });
    this.pager = pager((step) => this.page(step));
    this.element = h("div", {}, h("div", { class: "tools" }, this.states, this.search, this.newest), this.acts, this.table.element, this.pager.element);
  }

  columns() {
    return [
      { title: "id", kind: "id", cell: (row, cell) => cell.firstChild ?? h("a", { href: this.address({ message: row.id }) }, data(row.id)) },
      { title: "state", kind: "in", cell: (row, cell) => {
        if (cell.state === row.state) return undefined;
        cell.state = row.state;
        return badge(row.state);
      } },
      { title: "payload", kind: "preview", cell: (row) => (row.size ? visible(row.preview) : "(empty)") },
      { title: "size", kind: "number", cell: (row) => format.bytes(row.size) },
      { title: "prio", kind: "number", cell: (row, cell) => { cell.classList.toggle("zero", row.priority === 0); return String(row.priority); } },
      { title: "attempts", kind: "number", cell: (row, cell) => { cell.classList.toggle("zero", row.attempts === 0); return format.count(row.attempts); } },
      { title: "put", kind: "time", cell: (row, cell) => { cell.title = format.when(row.received_at); return format.ago(row.received_at); } },
      { title: "about", kind: "about", cell: (row, cell) => { const said = about(row); cell.title = said; return said; } },
    ];
  }

  /** The address of this list with these changes. */
  address(changes) {
    const now = { state: this.state, text: this.text, message: "", ...changes };
    const query = new URLSearchParams(Object.entries(now).filter(([, value]) => value)).toString();
    return href(this.queue, query ? `?${query}` : "");
  }

  turn(parameters) {
    const [state, text] = [parameters.get("state") ?? "", parameters.get("text") ?? ""];
    if (state !== this.state || text !== this.text) {
      this.pages = [""];
      this.chosen.clear();
    }
    [this.state, this.text] = [format.STATES.includes(state) ? state : "", text];
    if (document.activeElement !== this.search) this.search.value = text;
    const id = parameters.get("message");
    if (id === this.opened) return;
    this.opened = id;
    this.dialog?.close();
    this.waiting = id; // until it is known who asks
    if (id && this.app.me) this.show(id);
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => {
      history.replaceState(null, "", this.address({ text: this.search.value.trim() }));
      this.app.route();
    }, 250);
  }

  turnTo(state) {
    clearTimeout(this.typing); // what is typed counts now
    location.hash = this.address({ state, text: this.search.value.trim() });
  }

  page(step) {
    if (step > 0 && this.next) this.pages.push(this.next);
    else if (step < 0) this.pages.pop();
    if (!this.pages.length) this.pages = [""];
    this.chosen.clear();
    this.app.nudge();
  }

  /** Go to the page with the messages that were put last: from the last of many parts, only ids are read. */
  async toNewest() {
    const parts = await api.parts(this.queue, PARTS);
    let ids = [];
    for (let after = parts.at(-2) ?? ""; after !== undefined;) {
      const more = await api.ids(this.queue, after);
      ids = [...ids, ...more].slice(-PAGE - 1);
      after = more.at(-1);
    }
    if (ids.length <= PAGE) return;
    this.pages.push(ids[0]);
    this.chosen.clear();
    this.app.nudge();
  }

  async refresh(signal, counts) {
    this.counts = counts;
    if (this.waiting) this.show(this.waiting);
    this.total = Object.values(counts).reduce((sum, each) => sum + each, 0);
    this.showStates();
    if (!this.app.may("read")) {
      this.table.show([], (row) => row.id);
      return;
    }
    const found = await api.find(this.queue, { state: this.state, text: this.text, after: this.pages.at(-1), limit: PAGE }, signal);
    this.next = found.next;
    for (const id of this.chosen) if (!found.messages.some((row) => row.id === id)) this.chosen.delete(id);
    this.found = new Map(found.messages.map((row) => [row.id, row]));
    this.table.show(found.messages, (row) => row.id);
    const looked = this.text ? ` of ${format.plural(found.looked, "message")} searched` : "";
    this.pager.show(`Page ${format.count(this.pages.length)}: ${format.plural(found.messages.length, "message")}${looked}`, this.pages.length > 1, found.next !== null);
    this.pager.element.hidden = !this.total && this.pages.length === 1;
    this.newest.hidden = Boolean(this.text || this.state) || found.next === null;
    this.showActs();
  }

  showStates() {
    const all = [["", "all", this.total], ...format.STATES.map((name) => [name, format.state(name), this.counts[name] ?? 0])];
    if (!this.states.children.length) {
      fill(this.states, all.map(([name, title]) => h("button", { type: "button", class: name, onclick: () => this.turnTo(name) },
        name ? h("span", { class: "sign", "aria-hidden": "true" }, format.sign(name)) : null, title, " ", h("b"))));
    }
    all.forEach(([name, , number], index) => {
      say(this.states.children[index].lastChild, format.short(number));
      this.states.children[index].setAttribute("aria-pressed", name === this.state);
    });
  }

  showActs() {
    const ids = [...this.chosen];
    const drawn = ids.map((id) => `${id}${this.found?.get(id)?.state}`).join() + this.app.me?.roles.join();
    if (this.drawn === drawn) return;
    this.drawn = drawn;
    this.acts.hidden = ids.length === 0;
    const chosen = ids.map((id) => this.found.get(id)).filter(Boolean);
    fill(this.acts, h("b", {}, `${format.count(ids.length)} chosen`), this.actions(chosen, () => this.chosen.clear()));
  }

  /** What can be done with some messages. */
  actions(rows, done = () => {}) {
    const of = (...states) => rows.filter((row) => states.includes(row.state)).map((row) => row.id);
    const [failed, movable, all] = [of("failed"), of("failed", "available", "delayed"), rows.map((row) => row.id)];
    const leased = rows.filter((row) => row.state === "in_flight" && row.lease_until).map((row) => row.id); // others are a stream's
    return [
      failed.length && this.app.may("admin") ? h("button", { type: "button", onclick: () => this.redrive(failed, done) }, `Redrive ${format.count(failed.length)}`) : null,
      leased.length && this.app.may("admin") ? h("button", { type: "button", onclick: () => this.revoke(leased, done) }, `Revoke ${format.plural(leased.length, "lease")}`) : null,
      movable.length && this.app.may("admin") ? h("button", { type: "button", onclick: () => this.move(movable, done) }, `Move ${format.count(movable.length)}\u2026`) : null,
      all.length && this.app.may("consume") ? h("button", { type: "button", class: "danger", onclick: () => this.remove(all, rows, done) }, `Remove ${format.count(all.length)}`) : null,
    ];
  }

  redrive(ids, done = () => {}) {
    const many = ids ? ids.length : this.counts.failed;
    dialogs.ask({
      title: "Redrive", button: `Redrive ${format.plural(many, "message")}`,
      text: `${format.plural(many, "failed message")} of ${this.queue} will be tried again, with attempts counted from 0. Dead letters go back to the queue that they come from.`,
      run: () => api.redrive(this.queue, ids),
      done: (count) => { done(); this.app.tell(`${format.plural(count, "message")} redriven.`); },
    });
  }

  revoke(ids, done) {
    const [one, many] = [ids.length === 1, format.plural(ids.length, "message")];
    dialogs.ask({
      title: "Revoke leases", danger: true, button: `Revoke ${format.plural(ids.length, "lease")}`,
      text: [`${many} of ${this.queue} will be available again at once, with attempts as counted.`,
        one ? "The consumer that holds it loses its lease, and its ack will be refused. If it is still working, the work is done twice."
          : "The consumers that hold them lose their leases, and their acks will be refused. Where one is still working, the work is done twice."],
      run: () => api.revoke(this.queue, ids),
      done: (count) => { done(); this.app.tell(`${format.plural(count, "message")} available again.`); },
    });
  }

  move(ids, done = () => {}) {
    const many = ids ? ids.length : this.counts.failed;
    const target = h("input", { autocomplete: "off", spellcheck: "false", maxlength: 255 });
    dialogs.ask({
      title: "Move to another queue", button: `Move ${format.plural(many, "message")}`,
      text: `${format.plural(many, ids ? "message" : "failed message")} of ${this.queue} will leave it, and start in the other queue with attempts 0 under a new id.`,
      fields: [dialogs.field("To queue", target)],
      run: () => {
        if (!target.value) throw new Error("Name the queue that takes them.");
        return api.move(this.queue, target.value, ids);
      },
      done: (count) => { done(); this.app.tell(`${format.plural(count, "message")} moved to ${target.value}.`); },
    });
  }

  remove(ids, rows, done = () => {}) {
    const held = rows.filter((row) => row.state === "in_flight").length;
    dialogs.ask({
      title: "Remove", danger: true, button: `Remove ${format.plural(ids.length, "message")}`,
      text: [`${format.plural(ids.length, "message")} of ${this.queue} will be gone, payloads included. This cannot be undone.`,
        held ? `${format.plural(held, "message")} of them ${held === 1 ? "is" : "are"} being worked on; that work will be refused.` : null],
      run: () => api.remove(this.queue, ids),
      done: (count) => { done(); this.app.tell(`${format.plural(count, "message")} removed.`); },
    });
  }

  /** Open a message. */
  async show(id) {
    this.waiting = null;
    const inside = h("div", { class: "inside" }, h("p", { class: "note" }, "Loading\u2026"));
    const foot = h("div", { class: "foot" });
    const dialog = (this.dialog = dialogs.open(`Message ${visible(id)}`, { class: "wide message" }, inside, foot));
    dialog.addEventListener("close", () => {
      if (this.dialog !== dialog) return;
      this.dialog = null;
      if (this.opened === id) location.hash = this.address({ message: "" });
    });
    try {
      const [message, attempts] = await Promise.all([api.message(this.queue, id), api.attempts(this.queue, id)]);
      if (message === null) fill(inside, h("p", {}, "There is no such message any more: it was acknowledged, removed, moved, or its time is over."));
      else {
        fill(inside, details(message, attempts, this.queue));
        fill(foot, this.actions([message], () => dialog.close()));
      }
    } catch (error) {
      fill(inside, h("p", { class: "failed", role: "alert" }, data(error.message)));
    }
  }

  teach() {
    if (!this.app.may("read")) return h("p", {}, "Your token lacks the role read, which looking at messages needs.");
    if (this.text) return this.next ? h("p", {}, "Nothing found so far: go on with the next page.") : h("p", {}, "No message has ", h("b", {}, data(this.text)), " in it.");
    if (this.state) return h("p", {}, `No message is ${format.state(this.state)}.`);
    return [h("p", {}, "The queue is empty. Put a message:"), h("pre", {}, `${COMMAND} put ${quoted(this.queue)} 'resize cat.jpg'`)];
  }
}

/** A word for a shell. */
export function quoted(word) {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** What matters most about a message in its state. */
function about(row) {
  const now = Date.now();
  const said = {
    delayed: () => `due ${format.ago(row.visible_at, now)}`,
    in_flight: () => `${row.consumer ?? "somebody"}, lease ends ${row.lease_until ? format.ago(row.lease_until, now) : "with its stream"}`,
    failed: () => row.reason ?? "no reason",
    done: () => `done ${format.ago(row.settled_at, now)}${row.consumer ? ` by ${row.consumer}` : ""}`,
    available: () => row.reason ?? "",
  }[row.state]?.() ?? "";
  return visible((row.group ? `group ${row.group}  ` : "") + said);
}

function details(message, attempts, queue) {
  const time = (at) => (at ? `${format.when(at)} (${format.ago(at)})` : null);
  const facts = [
    ["state", badge(message.state)],
    ["priority", String(message.priority)],
    ["attempts", format.count(message.attempts)],
    ["group", message.group ? data(message.group) : null],
    ["consumer", message.consumer ? data(message.consumer) : null],
    ["reason", message.reason ? data(message.reason) : null],
    ["created", time(message.created_at)],
    ["received", time(message.received_at)],
    ["visible", message.state === "delayed" ? time(message.visible_at) : null],
    ["claimed", time(message.claimed_at)],
    ["lease ends", message.state === "in_flight" ? time(message.lease_until) : null],
    ["settled", time(message.settled_at)],
    ["expires", time(message.expires_at)],
  ].filter(([, value]) => value !== null);
  const headers = Object.entries(message.headers ?? {});
  return [
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    h("h3", {}, "Payload"), payload(message, fileName(queue, message)),
    h("h3", {}, `Headers (${headers.length})`),
    headers.length ? h("div", { class: "table" }, h("table", { class: "pairs" }, h("thead", { class: "unseen" }, h("tr", {}, h("th", { scope: "col" }, "name"), h("th", { scope: "col" }, "value"))),
      h("tbody", {}, headers.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, data(name)), h("td", {}, data(value))))))) : h("p", { class: "note" }, "None."),
    h("h3", {}, `Attempts (${attempts.length})`),
    attempts.length ? h("ol", { class: "attempts" }, [...attempts].reverse().map((each) => h("li", { class: each.outcome ?? "running" },
      h("b", {}, `#${each.attempt} ${each.outcome ?? "running"}`), " ",
      h("span", {}, format.when(each.claimed_at), each.ended_at ? `, ${format.length((each.ended_at - each.claimed_at) / 1000)}` : ""),
      each.consumer ? [" by ", data(each.consumer)] : null,
      each.reason ? h("p", { class: "reason" }, data(each.reason)) : null))) : h("p", { class: "note" }, "Nobody has claimed it yet."),
  ];
}

function fileName(queue, message) {
  const kind = /^\s*[[{]/.test(message.payload ?? "") ? "json" : message.payload === null ? "bin" : "txt";
  return `${queue}-${message.id}.${kind}`.replace(/[^A-Za-z0-9._-]/g, "_").replace(/^\.+/, "_");
}

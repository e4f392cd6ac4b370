// The server itself: health, versions, disk, commits.

import { api } from "./api.js";
import { data, fill, h, say, section, svg } from "./dom.js";
import * as format from "./format.js";

const TIGHT = 0.1; // of a disk that is free: below this it stands out

export class Server {
  title = "Server";

  constructor(app) {
    this.app = app;
    this.state = h("p", { class: "health", role: "status" });
    this.facts = h("dl", { class: "facts" });
    this.disk = h("div", { class: "meter" });
    this.commits = h("dl", { class: "tiles" });
    this.none = h("p", { class: "note", hidden: true }, "No commit, or none that this server has seen.");
    this.answers = h("dl", { class: "facts" });
    this.element = h("div", { class: "server" }, h("h1", { class: "unseen" }, "Server"),
      this.state,
      section("Commits of the last five minutes", this.commits, this.none),
      section("Disk", this.disk),
      section("Server", this.facts),
      section("Answers since the start", this.answers,
        h("p", { class: "note" }, "For graphs and alerts: ", h("a", { href: "metrics" }, "metrics for Prometheus"), ". For programs: ", h("a", { href: "docs" }, "the HTTP API"), ".")));
  }

  async refresh(signal) {
    const found = await api.server(signal);
    this.app.version(found.version);
    const stuck = found.longest_commit > 10;
    const well = found.store.open && !stuck;
    this.state.classList.toggle("bad", !well);
    say(this.state, !found.store.open ? "The store was closed, or has failed: look at the server's log."
      : stuck ? `A commit has been running for ${format.length(found.longest_commit)}: look at the disk.` : "The server is well.");
    const { commits, disk } = found;
    this.list(this.commits, commits === null ? [] : [
      ["commits", format.count(commits.count)], ["half took at most", format.length(commits.p50)], ["99 of 100 at most", format.length(commits.p99)],
    ]);
    this.none.hidden = commits !== null;
    this.showDisk(disk);
    this.list(this.facts, [
      ["version", found.version], ["store", found.store.kind], ["up for", format.length(found.uptime)], ["queues", format.count(found.queues)],
      ["connections", format.count(found.connections)], ["memory", format.bytes(found.memory)], ["requests in memory", format.bytes(found.buffered)],
      ["CPU time", format.length(found.cpu)], ["longest running commit", format.length(found.longest_commit)],
    ]);
    this.list(this.answers, Object.entries(found.answers).map(([status, number]) => [status, format.count(number)]));
  }

  list(element, pairs) {
    if (element.dataset.names !== pairs.map(([name]) => name).join()) {
      element.dataset.names = pairs.map(([name]) => name).join();
      fill(element, pairs.map(([name]) => h("div", {}, h("dt", {}, data(name)), h("dd"))));
    }
    pairs.forEach(([, value], index) => say(element.children[index].lastChild, value));
  }

  showDisk(disk) {
    if (disk === null) {
      fill(this.disk, h("p", { class: "note" }, "This store is on no disk of the server's."));
      return;
    }
    const used = 1 - disk.free / disk.total;
    const text = `${format.bytes(disk.free)} of ${format.bytes(disk.total)} free`;
    if (this.disk.dataset.text === text) return;
    this.disk.dataset.text = text;
    this.disk.classList.toggle("bad", 1 - used < TIGHT);
    fill(this.disk, svg("svg", { viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { width: 100, height: 1, class: "all" }), svg("rect", { width: (used * 100).toFixed(2), height: 1, class: "used" })),
      h("p", {}, text, 1 - used < TIGHT ? ": puts are refused when it is full" : ""));
  }
}

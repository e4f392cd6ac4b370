// Streams, followers, loads and workers.

import { api, COMMAND } from "./api.js";
import * as dialogs from "./dialogs.js";
import { data, h, section, Table } from "./dom.js";
import * as format from "./format.js";
import { counted, href } from "./overview.js";

const named = (queue) => (row, cell) => cell.firstChild ?? h("a", { href: href(row[queue]) }, data(row[queue]));

/** The number of the last request at the end of a process's name tells nobody anything: its machine does. */
function reader(name) {
  const parts = name.split("@");
  return parts.length === 3 ? `process ${parts[0].split("-")[1] ?? parts[0]} on ${parts[2]}` : name;
}

export class Streams {
  title = "Streams and workers";

  constructor(app) {
    this.app = app;
    this.streams = new Table("Streams", [
      { title: "stream", kind: "name", cell: (row) => row.stream },
      { title: "queue", cell: named("queue") },
      { title: "mode", cell: (row) => row.mode },
      { title: "batch", kind: "number", cell: (row) => format.count(row.batch) },
      { title: "holds", kind: "number", cell: (row, cell) => counted(cell, row.messages, "") },
      { title: "age", kind: "number", cell: (row) => (row.age === null ? "" : format.length(row.age)) },
      { title: "will fail", kind: "number", cell: (row, cell) => counted(cell, row.failures, "failed") },
      { title: "lag", kind: "number", cell: (row, cell) => counted(cell, row.lag, "") },
      { title: "reader", kind: "about", cell: (row, cell) => { cell.title = row.reader; return reader(row.reader) + (row.gone ? " (has ended)" : ""); } },
      { title: "actions", kind: "do", cell: (row, cell) => this.acts(row, cell) },
    ], { empty: () => [h("p", {}, "No Spark query reads a queue as a stream. One that does, exactly once:"),
      h("pre", {}, 'spark.readStream.format("penstock").option("store", "data") \\\n    .option("queue", "jobs").option("mode", "consume").option("stream", "nightly")')] });
    this.followers = new Table("Followers", [
      { title: "follower", kind: "name", cell: (row) => row.follower },
      { title: "queue", cell: named("queue") },
      { title: "position", kind: "number", cell: (row) => format.count(row.position) },
      { title: "lag", kind: "number", cell: (row, cell) => counted(cell, row.lag, "") },
      { title: "held back", kind: "number", cell: (row) => format.bytes(row.held_back) },
      { title: "seen", kind: "time", cell: (row) => format.ago(row.seen, this.now) },
    ], { empty: () => h("p", {}, "No query follows what enters a queue.") });
    this.loads = new Table("Loads", [
      { title: "load", kind: "name", cell: (row) => row.load },
      { title: "parts", kind: "number", cell: (row) => format.count(row.parts) },
      { title: "messages", kind: "number", cell: (row) => format.count(row.messages) },
      { title: "new queues", cell: (row) => row.queues.join(", ") },
      { title: "began", kind: "time", cell: (row) => format.ago(row.began, this.now) },
      { title: "last request", kind: "time", cell: (row) => format.ago(row.touched, this.now) },
    ], { empty: () => h("p", {}, "No load is under way.") });
    this.workers = new Table("Workers", [
      { title: "consumer", kind: "name", cell: (row, cell) => cell.firstChild ?? data(row.consumer) },
      { title: "queue", cell: named("queue") },
      { title: "messages", kind: "number", cell: (row) => format.count(row.messages) },
      { title: "seen", kind: "time", cell: (row) => format.ago(row.seen, this.now) },
    ], { empty: () => [h("p", {}, "No consumer has asked this server for messages lately. Start one:"), h("pre", {}, `${COMMAND} work jobs -- ./resize.sh`)] });
    this.element = h("div", {}, h("h1", { class: "unseen" }, this.title),
      section("Streams", this.streams.element), section("Followers", this.followers.element),
      section("Loads under way", this.loads.element), section("Workers seen lately", this.workers.element));
  }

  acts(row, cell) {
    const offers = [
      row.mode === "consume" && row.messages > 0 && "release",
      row.messages === 0 && row.gone !== false && "delete",
    ].filter((each) => each && this.app.may("admin"));
    const drawn = offers.join();
    if (cell.drawn === drawn) return undefined;
    cell.drawn = drawn;
    cell.replaceChildren(...offers.map((offer) => (offer === "release"
      ? h("button", { type: "button", onclick: () => this.release(row) }, `Release ${format.count(row.messages)}`)
      : h("button", { type: "button", class: "danger", onclick: () => this.drop(row) }, "Delete"))));
    return undefined;
  }

  release(row) {
    dialogs.ask({
      title: `Release ${row.stream}`, danger: true, button: `Release ${format.plural(row.messages, "message")}`,
      text: `${format.plural(row.messages, "message")} of ${row.queue} that this stream holds will be available again; its batch ${row.batch} will be empty. What its query has written of them stays, so they may be processed twice. Do this only if the query does not come back.`,
      run: () => api.releaseStream(row.queue, row.stream),
      done: (count) => this.app.tell(`${format.plural(count, "message")} released.`),
    });
  }

  drop(row) {
    dialogs.ask({
      title: `Delete ${row.stream}`, danger: true, button: "Delete 1 stream",
      text: `The stream of ${row.queue} will be forgotten. It holds no message.`,
      run: () => api.deleteStream(row.queue, row.stream),
      done: () => this.app.tell(`Deleted the stream ${row.stream}.`),
    });
  }

  async refresh(signal) {
    const found = await api.activity(signal);
    this.now = found.now;
    this.streams.show(found.streams, (row) => `${row.queue} ${row.stream}`);
    this.followers.show(found.followers, (row) => `${row.queue} ${row.follower}`);
    this.loads.show(found.loads, (row) => row.load);
    this.workers.show(found.consumers, (row) => `${row.queue} ${row.consumer}`);
  }
}

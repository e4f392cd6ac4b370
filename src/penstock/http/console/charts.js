// Charts drawn as SVG. Values may be null, where nothing is known: lines have a gap there.

import { h, say, svg } from "./dom.js";

/** Lines through values, as the path of an SVG; `x` and `y` give the place of each. */
function path(values, x, y) {
  let drawn = "";
  let open = false;
  values.forEach((value, index) => {
    if (value === null || value === undefined) open = false;
    else {
      drawn += `${open ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}${open ? "" : "h.1"}`; // a point alone shows, too
      open = true;
    }
  });
  return drawn;
}

/** The area between the values and the axis. */
function area(values, x, y, floor) {
  let drawn = "";
  let first = -1;
  for (let index = 0; index <= values.length; index++) {
    const known = index < values.length && values[index] !== null && values[index] !== undefined;
    if (known && first < 0) first = index;
    if (!known && first >= 0) {
      const part = values.slice(first, index);
      drawn += `${path(part, (at) => x(at + first), y)}L${x(index - 1).toFixed(1)} ${floor}L${x(first).toFixed(1)} ${floor}Z`;
      first = -1;
    }
  }
  return drawn;
}

const highest = (series) => series.flat().reduce((most, value) => Math.max(most, value ?? 0), 0);

/** A small line in a cell, which is drawn again when its values change. */
export function sparkline(cell, values, kind, about) {
  const drawn = `${kind}:${values.join()}`;
  if (cell.drawn === drawn) return undefined;
  cell.drawn = drawn;
  if (!values.some((value) => value > 0)) {
    cell.replaceChildren();
    return undefined;
  }
  const [width, height] = [96, 24];
  const most = highest([values]) || 1;
  const x = (index) => (index * width) / Math.max(1, values.length - 1);
  const y = (value) => height - 1 - (value / most) * (height - 3);
  cell.replaceChildren(svg(
    "svg", { class: `spark ${kind}`, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": about },
    svg("path", { class: "area", d: area(values, x, y, height) }),
    svg("path", { class: "line", d: path(values, x, y), "vector-effect": "non-scaling-stroke" }),
  ));
  return undefined;
}

/** A round number at or above the highest value, for the axis. */
function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/** A chart of some series over time, with a legend that has the values under the pointer. */
export class Chart {
  constructor(title, series, format) {
    this.series = series; // {name, kind}
    this.format = format;
    this.times = [];
    this.values = series.map(() => []);
    this.shown = series.map(() => h("span", { class: "value" }));
    this.at = h("span", { class: "at" });
    this.plot = svg("svg", { viewBox: "0 0 600 150", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.top = h("span", { class: "top" });
    this.left = h("span");
    this.right = h("span");
    this.about = h("p", { class: "unseen" });
    this.box = h("div", { class: "plot" }, this.top, this.plot);
    this.box.addEventListener("pointermove", (event) => this.point(event));
    this.box.addEventListener("pointerleave", () => this.point(null));
    this.element = h(
      "figure", { class: "chart" },
      h("figcaption", {},
        h("b", {}, title), this.at,
        h("span", { class: "legend" }, series.map((each, index) => h("span", { class: `key ${each.kind}` }, each.name, " ", this.shown[index])))),
      this.about, this.box,
      h("div", { class: "axis", "aria-hidden": "true" }, this.left, this.right),
    );
    this.title = title;
  }

  /** Show values, a list for each series, at times in milliseconds. */
  show(times, values, span) {
    this.times = times;
    this.values = values;
    const most = ceiling(highest(values));
    const x = (index) => (index * 600) / Math.max(1, times.length - 1);
    const y = (value) => 149 - (value / most) * 145;
    const grid = [0.25, 0.5, 0.75].map((part) => svg("line", { class: "gridline", x1: 0, x2: 600, y1: y(part * most), y2: y(part * most), "vector-effect": "non-scaling-stroke" }));
    const lines = this.series.map((each, index) => svg("g", { class: each.kind },
      index === 0 ? svg("path", { class: "area", d: area(values[index], x, y, 150) }) : null,
      svg("path", { class: "line", d: path(values[index], x, y), "vector-effect": "non-scaling-stroke" })));
    this.rule = svg("line", { class: "rule", x1: -9, x2: -9, y1: 0, y2: 150, "vector-effect": "non-scaling-stroke" });
    this.plot.replaceChildren(...grid, ...lines, this.rule);
    say(this.top, this.format(most));
    say(this.left, times.length ? span : "no history yet");
    say(this.right, "now");
    this.tell(times.length - 1, "");
    const latest = this.series.map((each, index) => {
      const known = values[index].filter((value) => value !== null && value !== undefined);
      return known.length ? `${each.name}: ${this.format(known.at(-1))} now, at most ${this.format(Math.max(...known))}` : `${each.name}: not known yet`;
    });
    say(this.about, `${this.title}, ${span}. ${latest.join("; ")}.`);
  }

  tell(index, at) {
    say(this.at, at);
    this.shown.forEach((element, each) => {
      const value = this.values[each][index];
      say(element, value === null || value === undefined ? "\u2013" : this.format(value));
    });
  }

  point(event) {
    if (!this.rule || !this.times.length) return;
    if (event === null) {
      this.rule.setAttribute("x1", -9);
      this.rule.setAttribute("x2", -9);
      this.tell(this.times.length - 1, "");
      return;
    }
    const box = this.plot.getBoundingClientRect();
    const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const index = Math.round(part * (this.times.length - 1));
    const place = (index * 600) / Math.max(1, this.times.length - 1);
    this.rule.setAttribute("x1", place);
    this.rule.setAttribute("x2", place);
    const date = new Date(this.times[index]);
    this.tell(index, `${String(date.getHours()).padStart(2, "0")}:${String(date.getMinutes()).padStart(2, "0")}`);
  }
}

// Elements, made without markup: every text of the server becomes a text node, never HTML.

const SVG = "http://www.w3.org/2000/svg";

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) {
      element.append(child instanceof Node ? child : String(child));
    }
  }
  return element;
}

/** An element with attributes and children. `onclick` and the like are listeners; null and false are left out. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  return add(element, children);
}

/** An SVG element. */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return add(element, children);
}

/** Replace what is in an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

/** Set a text if it is another, so that selections and screen readers are left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A text for people: what cannot be seen, or would turn the text around, is shown by a sign for it. */
export function visible(text, lines = false) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (sign) => {
    const code = sign.charCodeAt(0);
    if (lines && (sign === "\n" || sign === "\t")) return sign;
    if (lines && sign === "\r") return "";
    if (code < 32) return String.fromCharCode(0x2400 + code);
    return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}

/** A text of somebody else, kept apart from the text around it. */
export function data(text, attributes = {}) {
  return h("bdi", attributes, visible(text));
}

/** A table that keeps its rows, and with them focus and selection, when its data change.
 *
 * Columns: {title, name, kind, cell(row, td)}: `cell` returns a text or an element, or changes `td` itself.
 */
export class Table {
  constructor(caption, columns, { sort = null, empty = null, pick = null } = {}) {
    this.columns = columns;
    this.rows = new Map();
    this.sort = sort;
    this.empty = empty;
    this.pick = pick; // {chosen: Set, changed()}: rows have boxes to tick
    this.head = h("tr", { role: "row" });
    this.body = h("tbody", { role: "rowgroup" });
    this.none = h("div", { class: "empty" });
    this.table = h(
      "table", { role: "table" },
      h("caption", { class: "unseen" }, caption),
      h("thead", { role: "rowgroup" }, this.head),
      this.body,
    );
    this.element = h("div", { class: "table" }, this.table, this.none);
    this.makeHead();
  }

  makeHead() {
    if (this.pick) {
      this.all = h("input", { type: "checkbox", "aria-label": "All messages of this page", onchange: () => this.tickAll() });
      this.head.append(h("th", { scope: "col", role: "columnheader", class: "tick" }, this.all));
    }
    for (const column of this.columns) {
      const sortable = this.sort && column.name;
      const title = sortable
        ? h("button", { type: "button", onclick: () => this.sort.by(column.name), title: column.about }, column.title, h("span", { class: "arrow", "aria-hidden": "true" }))
        : column.title;
      this.head.append(h("th", { scope: "col", role: "columnheader", class: column.kind, "data-name": column.name }, title));
    }
  }

  /** Show which column the rows are sorted by. */
  sorted(name, down) {
    for (const th of this.head.children) {
      const on = th.dataset.name !== undefined && th.dataset.name === name;
      if (on) th.setAttribute("aria-sort", down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
  }

  /** Show these rows, each known by its key. */
  show(rows, key) {
    const now = new Map();
    let at = this.body.firstChild;
    for (const row of rows) {
      const id = key(row);
      const tr = this.rows.get(id) ?? this.makeRow(id);
      this.rows.delete(id);
      now.set(id, tr);
      this.columns.forEach((column, index) => put(tr.cells[index + (this.pick ? 1 : 0)], column.cell(row, tr.cells[index + (this.pick ? 1 : 0)]), column.title));
      if (tr === at) at = at.nextSibling;
      else this.body.insertBefore(tr, at);
    }
    for (const tr of this.rows.values()) tr.remove();
    this.rows = now;
    this.table.hidden = rows.length === 0;
    this.none.hidden = rows.length !== 0;
    if (rows.length === 0 && this.empty) fill(this.none, this.empty());
    if (this.pick) this.ticked();
  }

  makeRow(id) {
    const tr = h("tr", { role: "row" });
    if (this.pick) {
      const box = h("input", { type: "checkbox", "aria-label": `Message ${id}`, onchange: () => this.tick(id, box.checked) });
      tr.append(h("td", { role: "cell", class: "tick" }, box));
    }
    this.columns.forEach((column, index) => tr.append(
      index ? h("td", { role: "cell", class: column.kind, "data-title": column.title }) : h("th", { role: "rowheader", scope: "row", class: column.kind, "data-title": column.title }),
    ));
    return tr;
  }

  tick(id, on) {
    if (on) this.pick.chosen.add(id);
    else this.pick.chosen.delete(id);
    this.ticked();
    this.pick.changed();
  }

  tickAll() {
    const on = this.all.checked;
    for (const id of this.rows.keys()) if (on) this.pick.chosen.add(id); else this.pick.chosen.delete(id);
    this.ticked();
    this.pick.changed();
  }

  ticked() {
    let on = 0;
    for (const [id, tr] of this.rows) {
      const box = tr.cells[0].firstChild;
      box.checked = this.pick.chosen.has(id);
      tr.classList.toggle("chosen", box.checked);
      on += box.checked;
    }
    this.all.checked = on > 0 && on === this.rows.size;
    this.all.indeterminate = on > 0 && on < this.rows.size;
  }
}

/** Put a value into a cell, if it is another one than before. */
function put(cell, value) {
  if (value === undefined) return;
  if (value instanceof Node) {
    if (cell.firstChild !== value) cell.replaceChildren(value);
  } else say(cell, value === null ? "" : visible(value));
}

/** A heading with what belongs beside it. */
export function section(title, ...children) {
  const id = `s${++section.count}`;
  return h("section", { "aria-labelledby": id }, h("h2", { id }, title), ...children);
}
section.count = 0;

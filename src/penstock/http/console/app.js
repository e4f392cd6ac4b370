// The console: which view is shown, who is asked, and what happens when the server goes away.

import { api, Refused, session, Unreachable } from "./api.js";
import * as dialogs from "./dialogs.js";
import { data, fill, h, say, visible } from "./dom.js";
import { Overview } from "./overview.js";
import { Queue } from "./queue.js";
import { Server } from "./server.js";
import { Streams } from "./streams.js";

const SHORTCUTS = [
  ["?", "These shortcuts"],
  ["/", "Search"],
  ["g o", "Go to the overview"],
  ["g s", "Go to streams and workers"],
  ["g h", "Go to the server's health"],
  ["n", "Next page of a table"],
  ["b", "Page before"],
  ["c", "Create a queue, or put a message into the one that is shown"],
  ["Esc", "Close a dialog"],
];
const VIEWS = [["", "Overview", Overview], ["streams", "Streams", Streams], ["server", "Server", Server]];
const QUIET = "penstock.quiet"; // set: single keys do nothing in this tab
const BETWEEN = 1_000; // milliseconds between two refreshes, at least
const LONGEST = 8_000; // between two tries to reach a server that has gone

class App {
  constructor() {
    this.me = null; // {name, roles, tokens}
    this.view = null;
    this.watching = new AbortController();
    this.again = false; // somebody wants the view refreshed
    this.wake = () => {};
    this.said = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
    this.banner = h("div", { class: "banner", role: "status", "aria-live": "polite" });
    this.live = h("span", { class: "live" });
    this.who = h("span", { class: "who" });
    this.nav = h("nav", { "aria-label": "Main" }, VIEWS.map(([path, title]) => h("a", { href: `#/${path}` }, title)));
    this.main = h("main", { id: "main", tabindex: "-1" });
    this.header = h(
      "header", { class: "top" },
      h("a", { class: "brand", href: "#/" }, h("img", { src: new URL("icon.svg", import.meta.url), alt: "", width: 24, height: 24 }), "Penstock"),
      this.nav,
      h("div", { class: "aside" }, this.live, this.who, h("button", { type: "button", class: "plain", "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts", onclick: () => this.help() }, "?")),
    );
    document.body.append(
      h("a", { class: "skip", href: "#main", onclick: (event) => { event.preventDefault(); this.main.focus(); } }, "Skip to the content"),
      this.header, this.banner, this.main, this.said,
    );
    addEventListener("hashchange", () => this.route());
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("online", () => this.nudge());
    document.addEventListener("visibilitychange", () => this.nudge());
    this.route();
  }

  /** Whether one of these roles is held. */
  may(...roles) {
    return this.me !== null && (this.me.roles.includes("admin") || roles.some((role) => this.me.roles.includes(role)));
  }

  /** Show the view that the address names: #/queues/NAME?state=failed. */
  route() {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
    const [place, ...parts] = path.split("/").map(decoded);
    const parameters = new URLSearchParams(query ?? "");
    const where = parts.length ? `${place}/${parts.join("/")}` : place;
    if (this.view && this.where === where && this.view.turn) {
      this.view.turn(parameters);
      this.nudge();
      return;
    }
    this.where = where;
    for (const open of document.querySelectorAll("dialog")) open.close();
    const known = VIEWS.find(([name]) => name === place);
    if (place === "queues" && parts[0]) this.show(new Queue(this, parts[0], parameters));
    else this.show(new (known ?? VIEWS[0])[2](this, parameters));
    for (const link of this.nav.children) {
      if (link.getAttribute("href") === `#/${known ? place : ""}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  show(view) {
    const first = this.view === null;
    this.view = view;
    document.title = `${view.title} \u00b7 Penstock`;
    fill(this.main, view.element);
    scrollTo(0, 0);
    if (!first) this.main.focus({ preventScroll: true });
    this.watch(view);
  }

  /** Refresh a view whenever something has changed, as long as it is shown. */
  async watch(view) {
    this.watching.abort();
    const watching = (this.watching = new AbortController());
    const { signal } = watching;
    let failures = 0;
    while (!signal.aborted) {
      if (document.hidden) {
        this.again = false;
        await this.pause(signal, null);
        continue;
      }
      let wait = 0;
      this.again = false;
      try {
        if (this.me === null) await this.meet(signal);
        await view.refresh(signal);
        view.refused?.remove();
        failures = 0;
        this.reached(true);
        await this.change(view, signal);
        wait = 0;
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof Refused && error.status === 401) {
          this.login(session.token ? error.message : "");
          return;
        }
        if (error instanceof Unreachable || (error instanceof Refused && error.status === 503)) {
          this.reached(false, error);
          wait = Math.min(500 * 2 ** failures++, LONGEST);
        } else if (error instanceof Refused) {
          this.refuse(view, error);
          wait = LONGEST;
        } else {
          say(this.banner, "The console has failed: load this page again.");
          throw error;
        }
      }
      if (wait) await this.pause(signal, wait);
    }
  }

  /** Wait until the server says that something has changed, but no less than a moment; a nudge ends it early. */
  async change(view, signal) {
    await this.pause(signal, BETWEEN);
    if (!view.changed || this.again || signal.aborted) return;
    const waiting = new AbortController();
    const nudged = this.pause(signal, null).then(() => waiting.abort());
    try {
      await Promise.race([nudged, view.changed(AbortSignal.any([signal, waiting.signal]))]);
    } catch (error) {
      if (!waiting.signal.aborted) throw error;
    } finally {
      this.wake();
    }
  }

  /** Refresh the view at once; if that is under way, once more after it. */
  nudge() {
    this.again = true;
    this.wake();
  }

  /** Wait; a nudge ends it early. */
  pause(signal, milliseconds) {
    if (this.again) return Promise.resolve();
    return new Promise((resolve) => {
      const wake = () => {
        clearTimeout(timer);
        signal.removeEventListener("abort", wake);
        resolve();
      };
      const timer = milliseconds === null ? 0 : setTimeout(wake, milliseconds);
      signal.addEventListener("abort", wake);
      this.wake = wake;
    });
  }

  async meet(signal) {
    const me = await api.whoami(signal);
    if (me.needs_token && me.name === null) throw new Refused(401, { detail: "This token is not, or no longer, known: ask for a new one." });
    this.me = me;
    const { needs_token: asked, name, roles } = me;
    fill(this.who, asked
      ? [h("span", { class: "name", title: `Roles: ${roles.join(", ")}` }, data(name)), h("button", { type: "button", onclick: () => this.leave() }, "Sign out")]
      : null);
  }

  /** Note the server's version; after an upgrade this page is an old one. */
  version(version) {
    if (this.served && this.served !== version) this.tell(`The server is now Penstock ${version}: load this page again.`);
    this.served = version;
  }

  /** Show whether the server answers. */
  reached(there, error = null) {
    say(this.live, there ? "Live" : "Offline");
    this.live.classList.toggle("off", !there);
    this.header.classList.remove("locked");
    if (there && this.away) this.tell("Connected again.");
    this.away = !there;
    say(this.banner, there ? "" : `The server does not answer${error instanceof Refused ? `: ${error.message}` : ""}. What is shown is old; trying again.`);
    document.body.classList.toggle("away", !there);
  }

  refuse(view, error) {
    view.refused?.remove();
    const missing = error.status === 404;
    view.refused = h("div", { class: missing ? "refused alone" : "refused", role: "alert" },
      h("h2", {}, missing ? "Nothing here" : "Not possible"), h("p", {}, data(error.message)),
      missing ? h("p", {}, h("a", { href: "#/" }, "All queues")) : null);
    view.element.prepend(view.refused);
    this.reached(true);
  }

  login(problem) {
    this.watching.abort();
    this.me = null;
    fill(this.who);
    say(this.live, "");
    this.header.classList.add("locked");
    const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true });
    const told = h("p", { class: "failed", role: "alert" }, problem);
    const enter = (event) => {
      event.preventDefault();
      const token = input.value.trim();
      if (!/^[!-~]+$/.test(token)) {
        say(told, "A token is made of letters, digits, - and _, as in pst_...");
        return;
      }
      session.keep(token);
      this.view = null;
      this.route();
    };
    fill(this.main, h(
      "form", { class: "login", onsubmit: enter },
      h("h1", {}, "Sign in"),
      h("p", {}, "This server asks for a token. It is kept for this tab only, until you close it or sign out."),
      dialogs.field("Token", input),
      told,
      h("button", { type: "submit", class: "main" }, "Sign in"),
      h("details", {}, h("summary", {}, "Where do I get one?"),
        h("p", {}, "The server's operator makes one on its machine:"),
        h("pre", {}, "penstock token create me --role admin --tokens FILE"),
        h("p", {}, "Its roles decide what you see and may do: read to look, write to put, consume to remove, admin for all.")),
    ));
    document.title = "Sign in \u00b7 Penstock";
    input.focus();
  }

  leave() {
    session.forget();
    this.login("");
  }

  /** Say what has been done, and show what came of it. */
  tell(text) {
    const line = h("p", {}, text);
    this.said.append(line);
    setTimeout(() => line.remove(), 6_000);
    this.nudge();
  }

  /** Do something outside of a dialog; what is refused is said. */
  async attempt(work) {
    try {
      await work();
    } catch (error) {
      this.tell(visible(error.message));
    }
  }

  help() {
    if (document.querySelector("dialog")) return;
    const box = h("input", { type: "checkbox", onchange: () => (box.checked ? sessionStorage.removeItem(QUIET) : sessionStorage.setItem(QUIET, "")) });
    box.checked = sessionStorage.getItem(QUIET) === null;
    dialogs.open("Keyboard shortcuts", { class: "small" }, h("div", { class: "inside" },
      h("label", { class: "check" }, box, "Single keys work; without, speech input cannot press one by mistake"),
      h("dl", { class: "keys" }, SHORTCUTS.map(([key, about]) => [h("dt", {}, key.split(" ").map((each) => h("kbd", {}, each))), h("dd", {}, about)]))));
  }

  key(event) {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    const quiet = sessionStorage.getItem(QUIET) !== null;
    if (event.ctrlKey || event.metaKey || event.altKey || quiet || typing || document.querySelector("dialog")) {
      if (typing && event.key === "Escape") event.target.blur();
      return;
    }
    const going = this.going;
    this.going = false;
    const place = going ? { o: "#/", s: "#/streams", h: "#/server" }[event.key] : null;
    if (place) location.hash = place;
    else if (event.key === "g") this.going = true;
    else if (event.key === "?") this.help();
    else if (event.key === "/") this.main.querySelector("input[type=search]")?.focus();
    else if (event.key === "c") this.view?.make?.();
    else if (event.key === "n") this.main.querySelector("button.next:enabled")?.click();
    else if (event.key === "b") this.main.querySelector("button.before:enabled")?.click();
    else return;
    event.preventDefault();
  }
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

new App();

// The server's HTTP API. The token is kept for this tab only, and sent as a header: no other page can make a browser
// send it.

const ROOT = new URL(".", document.baseURI); // the folder /-/ of the server, also behind a proxy that adds a prefix
export const COMMAND = `penstock --store ${location.origin}`; // how a command reaches this server
const KEPT = "penstock.token";
const PATIENCE = 30_000; // milliseconds for an answer
const WAIT = 10; // seconds that the server may wait for a change; ages grow meanwhile

/** The server's refusal of a request. */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `the server answered ${status}`);
    this.status = status;
    this.error = problem.error ?? "";
  }
}

/** The server did not answer. */
export class Unreachable extends Error {}

export const session = {
  get token() {
    return sessionStorage.getItem(KEPT);
  },
  keep(token) {
    sessionStorage.setItem(KEPT, token);
  },
  forget() {
    sessionStorage.removeItem(KEPT);
  },
};

/** JSON with integers beyond 2^53 as texts, lest they change. */
function parse(text) {
  if (!/[0-9]{16}/.test(text)) return JSON.parse(text);
  return JSON.parse(text, (key, value, context) =>
    typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source ? context.source : value);
}

/** What the server answers; Refused, or Unreachable. */
async function ask(method, path, { query = {}, body = undefined, signal = undefined, patience = PATIENCE } = {}) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  const headers = {};
  if (session.token) headers.Authorization = `Bearer ${session.token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const late = AbortSignal.timeout(patience);
  let answer, text;
  try {
    answer = await fetch(url, {
      method, headers, cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, late]) : late,
    });
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable(error.message);
  }
  if (answer.ok) return text ? parse(text) : null;
  let problem = {};
  try {
    problem = JSON.parse(text);
  } catch {
    // an answer of something in between
  }
  if (problem.error === undefined && answer.status >= 502) throw new Unreachable(`a proxy answered ${answer.status}`);
  throw new Refused(answer.status, problem);
}

/** A name as a segment of a path. To a browser `..` is never a name, however it is encoded. */
function segment(name) {
  if (name !== "." && name !== "..") return encodeURIComponent(name);
  throw new Refused(404, { detail: `No browser can ask for something by the name of ${name} \u2013 use the command line.` });
}

const of = (queue) => `api/queues/${segment(queue)}`;
const one = (queue, id) => `${of(queue)}/messages/${segment(id)}`;
const stream = (queue, name) => `streams/${segment(queue)}/${segment(name)}`;

export const api = {
  whoami: (signal) => ask("GET", "api/whoami", { signal }),
  overview: (query, signal) => ask("GET", "api/overview", { query, signal }),
  changes: (query, signal) => ask("GET", "api/changes", { query: { ...query, wait: query.wait ?? WAIT }, signal, patience: PATIENCE + WAIT * 1000 }),
  document: () => ask("GET", "openapi.json"),
  server: (signal) => ask("GET", "api/server", { signal }),
  activity: (signal) => ask("GET", "api/activity", { signal }),
  total: (span, signal) => ask("GET", "api/history", { query: { span }, signal }),
  history: (queue, span, signal) => ask("GET", `${of(queue)}/history`, { query: { span }, signal }),
  reasons: (queue, state, signal) => ask("GET", `${of(queue)}/reasons`, { query: { state }, signal }),
  queue: (queue, signal) => ask("GET", of(queue), { signal }),
  find: (queue, query, signal) => ask("GET", `${of(queue)}/find`, { query, signal }),
  parts: async (queue, n) => (await ask("GET", `${of(queue)}/parts`, { query: { n } })).until,
  ids: async (queue, after) => (await ask("GET", `${of(queue)}/messages`, { query: { fields: "id", after, limit: 1000 } })).messages.map((each) => each.id),
  message: async (queue, id, signal) => (await ask("GET", one(queue, id), { signal })).messages[0] ?? null,
  attempts: async (queue, id, signal) => (await ask("GET", `${one(queue, id)}/attempts`, { signal })).attempts,

  create: (name, settings) => ask("POST", "api/queues", { body: { name, settings } }),
  update: async (queue, settings) => (await ask("PATCH", of(queue), { body: { settings } })).settings,
  drop: (queue) => ask("DELETE", of(queue)),
  put: async (queue, draft) => (await ask("POST", `${of(queue)}/put`, { body: { messages: [draft] } })).ids[0],
  remove: async (queue, ids) => (await ask("POST", `${of(queue)}/remove`, { body: { ids } })).count,
  revoke: async (queue, ids) => (await ask("POST", `${of(queue)}/revoke`, { body: { ids } })).count,
  redrive: async (queue, ids) => (await ask("POST", `${of(queue)}/redrive`, { body: ids ? { ids } : {} })).count,
  move: async (queue, target, ids) => (await ask("POST", `${of(queue)}/move`, { body: ids ? { target, ids } : { target } })).count,
  purge: async (queue) => (await ask("POST", `${of(queue)}/purge`, { body: {} })).count,
  releaseStream: async (queue, name) => (await ask("POST", `${stream(queue, name)}/release`, { body: {} })).count,
  deleteStream: (queue, name) => ask("DELETE", stream(queue, name)),
};

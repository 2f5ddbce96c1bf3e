// Requests to Spillway, each with the key that was typed in, if any.

const NAME = "spillway-key";

/** The key, which the browser forgets with the tab. Where it forbids to store anything, the key lasts until the page is loaded again. */
let key = "";
try {
  key = sessionStorage.getItem(NAME) ?? "";
} catch {}

export function setKey(value) {
  key = value;
  try {
    if (value) sessionStorage.setItem(NAME, value);
    else sessionStorage.removeItem(NAME);
  } catch {}
}

export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `Spillway answered with the status ${status}.`);
    this.status = status;
    this.code = error?.code;
  }
}

async function ask(path, { headers, bearer = key, ...options } = {}) {
  let answer;
  try {
    const authorization = bearer && { authorization: `Bearer ${bearer}` };
    answer = await fetch(new URL(`..${path}`, import.meta.url), { credentials: "omit", cache: "no-store", ...options, headers: { ...headers, ...authorization } });
  } catch {
    throw new Refused(0, { message: "Spillway can't be reached." });
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => null);
  throw new Refused(answer.status, told?.error);
}

/** The Server-Sent Events of an answer: yields `{ event, data }`, each of one line. */
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = "message";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("event: ")) event = line.slice(7);
      else if (line.startsWith("data: ")) yield { event, data: line.slice(6) };
      else if (!line) event = "message";
    }
  }
}

/** What Spillway tells at a path; `query` without what is empty. */
export async function get(path, query = {}) {
  const told = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  return (await ask(`/spillway/${path}${told.size ? `?${told}` : ""}`)).json();
}

/** The text at a path. */
export const text = async (path) => (await ask(`/spillway/${path}`)).text();

/** Have something done; `fields` are the body, if there is one. */
export const act = async (method, path, fields) =>
  (await ask(`/spillway/${path}`, { method, ...(fields && { headers: { "content-type": "application/json" }, body: JSON.stringify(fields) }) })).json();

/** The live feed: yields its events by name. */
export async function* live(signal) {
  for await (const { event, data } of events(await ask("/spillway/live", { signal }))) yield [event, JSON.parse(data)];
}

/** Ask a model for a streamed answer: yields what it says. `begun` is told the request's id; `bearer`: another key than the page's. */
export async function* talk(body, { signal, begun, bearer }) {
  const answer = await ask("/v1/chat/completions", {
    method: "POST",
    signal,
    bearer,
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
  });
  begun(answer.headers.get("x-request-id"));
  for await (const { data } of events(answer)) {
    if (!data.startsWith("{")) continue;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refused(200, chunk.error);
    const said = chunk.choices?.[0]?.delta?.content;
    if (said) yield said;
  }
}

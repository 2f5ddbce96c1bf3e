// Everything that is asked of Spillway, and the session that it is asked in.

/** The key that was typed in here: needed to ask a model, for which the cookie is no good. It is gone when the page is. */
export const held = { key: "" };

let csrf = null;

export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `Spillway answered with the status ${status}.`);
    this.status = status;
    this.code = error?.code;
  }
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw new Refused(0, { message: "Spillway can't be reached." });
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => null);
  throw new Refused(answer.status, told?.error);
}

const withBody = (method, body) => ({
  method,
  headers: { ...(csrf && { "x-spillway-csrf": csrf }), ...(body && { "content-type": "application/json" }) },
  ...(body && { body: JSON.stringify(body) }),
});

/** What Spillway tells at a path; `query` without what is empty. */
export async function get(path, query = {}) {
  const told = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  return (await ask(`/spillway/${path}${told.size ? `?${told}` : ""}`)).json();
}

/** Have something done. */
export async function act(method, path, body) {
  const answer = await ask(`/spillway/${path}`, withBody(method, body));
  return answer.status === 204 ? null : answer.json();
}

const known = (session) => {
  csrf = session.csrf;
  return session;
};

export const session = async () => known(await get("session"));

/** Exchange a key for a session. */
export async function signIn(key) {
  const begun = known(await act("POST", "session", { key }));
  if (begun.role === "key") held.key = key;
  return begun;
}

export async function signOut() {
  await act("DELETE", "session");
  held.key = "";
  return session();
}

/** Ask a model for a streamed answer: yields what it says. `begun` is told the request's id. */
export async function* talk(body, { signal, begun }) {
  const answer = await ask("/v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "content-type": "application/json", ...(held.key && { authorization: `Bearer ${held.key}` }) },
    body: JSON.stringify({ ...body, stream: true }),
  });
  begun(answer.headers.get("x-request-id"));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: {")) continue;
      const chunk = JSON.parse(line.slice(6));
      if (chunk.error) throw new Refused(200, chunk.error);
      const said = chunk.choices?.[0]?.delta?.content;
      if (said) yield said;
    }
  }
}

// What Spillway is, where clients find it, what it found, and a chat to try it; and the door, for those who have shown no key.
import { Refused, get, setKey, talk } from "../api.js";
import { announce, changed, feed, open, useFeed } from "../feed.js";
import { Bar, Legend, Heading, Problem, html, number, plural, to, useAsked, useEffect, useRef, useState } from "../lib.js";
import { Speed, State, held as fullness } from "./conversations.js";

/** The chat goes on while other views are looked at. `ended`: ends the running answer; `own`: the conversation's id; `bearer`: a client's key. */
const chat = { messages: [], request: null, own: null, ended: null, error: null, bearer: undefined };

function begin() {
  Object.assign(chat, { messages: [], request: null, own: null, error: null });
  changed();
}

async function say(model, text) {
  const asked = [...chat.messages, { role: "user", content: text }];
  const ended = new AbortController();
  let answer = "";
  Object.assign(chat, { ended, error: null, request: null });
  const draw = () => {
    chat.messages = [...asked, { role: "assistant", content: answer }];
    changed();
  };
  draw();
  try {
    for await (const said of talk({ model, messages: asked }, { signal: ended.signal, bearer: chat.bearer, begun: (id) => (chat.request = id) })) {
      answer += said;
      draw();
    }
    announce("The answer is complete.");
  } catch (problem) {
    if (!ended.signal.aborted) chat.error = problem instanceof Refused ? problem : new Refused(0, { message: "The answer broke off." });
  }
  chat.ended = null;
  draw();
}

/** The key to ask with, where the page's own is an admin's. */
const Key = () => html`<p class="made">Chats need a client's key. It is kept until the page is reloaded.</p>
  <label>Key <input type="password" autocomplete="off" onChange=${(event) => (chat.bearer = event.target.value.trim())} /></label>`;

function Said({ messages }) {
  const box = useRef();
  useEffect(() => {
    box.current.scrollTop = box.current.scrollHeight;
  }, [messages]);
  return html`<div class="said" tabindex="0" role="region" aria-label="The conversation" ref=${box}>
    ${messages.map(({ role, content }, place) => html`<div key=${place} class=${`message ${role}`}><b>${role === "user" ? "You" : "Model"}</b><p>${content || "…"}</p></div>`)}
  </div>`;
}

/** The row of the chat, from the moment that the feed tells of its request. */
function rowOf(rows) {
  const asked = chat.request && [...rows.values()].find(({ request }) => request === chat.request);
  if (asked) chat.own = asked.id;
  return rows.get(chat.own);
}

function Try({ models, demo }) {
  const { rows, session } = useFeed();
  const [model, setModel] = useState("");
  const [text, setText] = useState(null);
  const { messages, ended, error } = chat;
  const row = rowOf(rows);
  const asked = text ?? (demo && !messages.length ? "Count to 3000" : "");
  const send = (event) => {
    event.preventDefault();
    setText("");
    say(model || models[0], asked);
  };
  return html`<div class="try">
    ${messages.length > 0 && html`<${Said} messages=${messages} />`}
    ${row && html`<div class="row"><div class="now"><${State} row=${row} /><${Speed} row=${row} /><a href=${to("c", row.id)}>Open the conversation</a></div>
      <${Bar} row=${row} /><p class="made">${fullness(row)}</p><${Legend} row=${row} /></div>`}
    <form onSubmit=${send}>
      ${models.length > 1 && html`<label>Model <select value=${model || models[0]} onChange=${(event) => setModel(event.target.value)}>${models.map((id) => html`<option key=${id} value=${id}>${id}</option>`)}</select></label>`}
      ${session.role === "admin" && html`<${Key} />`}
      <label>Message <textarea rows="2" value=${asked} onInput=${(event) => setText(event.target.value)}></textarea></label>
      <div class="actions">
        <button disabled=${!!ended || !asked.trim() || !models.length}>Send</button>
        ${ended && html`<button type="button" class="stop" onClick=${() => ended.abort()}>Stop</button>`}
        ${!ended && messages.length > 0 && html`<button type="button" class="quiet" onClick=${begin}>New chat</button>`}
      </div>
    </form>
    <${Problem} error=${error} />
  </div>`;
}

function Copied({ text }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
    } catch {
      // Only on secure pages; the address can be selected by hand.
      getSelection().selectAllChildren(document.getElementById("base"));
    }
  };
  return html`<p class="copy"><code id="base">${text}</code><button onClick=${copy}>${copied ? "Copied" : "Copy"}</button></p>`;
}

const Backend = ({ backend }) => {
  const models = Object.entries(backend.models ?? {});
  return html`<li><b>${backend.name}</b> <span class="made">${backend.kind} at ${backend.url}</span>
    ${models.length ? html`<ul>${models.slice(0, 12).map(([model, told]) => html`<li key=${model}>${model} <span class="made">${told.window ? `${number(told.window.value)} tokens` : "window unknown"}</span></li>`)}
      ${models.length > 12 && html`<li><a href="#/models">and ${plural(models.length - 12, "more", "more")}</a></li>`}</ul>` : html`<p class="made">No answer, or no models: spillway check says why.</p>`}
  </li>`;
};

export function Start() {
  const { session } = useFeed();
  const { data, error } = useAsked(() => get("models"), [session]);
  const demo = data?.backends.length === 1 && data.backends[0].name === "demo";
  const models = (data?.backends ?? []).flatMap((backend) => Object.keys(backend.models ?? {}));
  return html`<${Heading}>Your conversation outlives the context window<//>
    <p class="lead">Spillway sits between your client and the model. It shortens the conversation before the context window overflows, and when the
      window fills in the middle of an answer, the answer continues.</p>
    <section aria-labelledby="url"><h2 id="url">Connect a client</h2>
      <p>As the base URL of an OpenAI API, with ${session?.role === "open" ? "any key" : "your key"}:</p>
      <${Copied} text=${session?.base_url} /></section>
    <section aria-labelledby="try"><h2 id="try">Try it</h2>
      ${demo && html`<p>No backend was found on this machine, so a built-in demo answers: a script with a small window, not a language model. Let it count, and watch
        the window fill, the answer pause while the conversation is compacted, and continue.</p>`}
      <${Try} models=${models} demo=${demo} /></section>
    <section aria-labelledby="found"><h2 id="found">Backends</h2>
      <${Problem} error=${error} />
      ${data && html`<ul class="found">${data.backends.map((backend) => html`<${Backend} key=${backend.name} backend=${backend} />`)}</ul>`}
    </section>`;
}

/** The only view of those who have typed in no key yet, or a wrong one. */
export function SignIn() {
  const [typed, setTyped] = useState("");
  const [wrong, setWrong] = useState(false);
  const send = async (event) => {
    event.preventDefault();
    setWrong(false);
    setKey(typed.trim());
    await open();
    setWrong(feed.session.role == null);
  };
  return html`<${Heading} note="A client's key shows its own conversations, one of SPILLWAY_ADMIN_KEYS shows all of them.">Sign in<//>
    <form class="signin" onSubmit=${send}>
      <label>Key <input type="password" autocomplete="current-password" required value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>
      <button>Sign in</button>
    </form>
    <${Problem} error=${wrong && "This key is not valid."} />`;
}

// All conversations, one row each, live; and one of them: its window, its summary, its turns.
import { act, get, text } from "../api.js";
import { announce, feed, useFeed, useOutcomes } from "../feed.js";
import { Bar, Facts, Heading, Legend, Problem, Text, clock, html, number, percent, plural, reasonOf, stateName, titleOf, to, troubled, useAsked, useFocus, useState } from "../lib.js";
import { Timeline } from "./timeline.js";

/** Who talks to what, in one line. */
export const madeOf = (row) =>
  [row.model, row.backend, row.client, row.dialect, plural(row.turns, "turn")].filter(Boolean).join(" · ");

/** Tokens in the window. */
export const held = (row) =>
  `${number((row.prompt ?? 0) + (row.answer ?? 0))} of ${number(row.window)} tokens` + (row.fill == null ? "" : ` (${percent(row.fill)})`);

export const State = ({ row }) =>
  row.state === "idle" && troubled(row) ? html`<span class="state trouble">failed</span>` : html`<span class=${`state ${row.state}`}>${stateName(row.state)}</span>`;

export const Speed = ({ row }) => row.tokens_per_second != null && html`<span class="speed">${number(row.tokens_per_second)} tokens/s</span>`;

/** The button that ends an answer. */
function Stop({ row }) {
  const [asked, setAsked] = useState(null);
  const [error, setError] = useState(null);
  if (!row.stoppable || row.state === "idle") return null;
  const stop = async () => {
    setAsked(row.request);
    setError(null);
    try {
      await act("POST", `requests/${encodeURIComponent(row.request)}/stop`);
      announce(`${titleOf(row)}: stopped`);
    } catch (problem) {
      setAsked(null);
      if (problem.code !== "not_running") setError(problem);
    }
  };
  return html`<button class="stop" disabled=${asked === row.request} aria-label=${`Stop the answer in ${titleOf(row)}`} onClick=${stop}>Stop</button>
    <${Problem} error=${error} />`;
}

function Row({ row }) {
  const trouble = row.state === "idle" && troubled(row);
  return html`<li class=${`row ${trouble ? "trouble" : ""}`} data-id=${row.id}>
    <div class="what">
      <a class="title" href=${to("c", row.id)}>${titleOf(row)}</a>
      <p class="made">${madeOf(row)}</p>
    </div>
    <div class="now">
      <${State} row=${row} /><${Speed} row=${row} /><${Stop} row=${row} />
      <time class="made">${clock(row.last_at)}</time>
    </div>
    <${Bar} row=${row} />
    <p class="made">${held(row)}${row.compactions > 0 && ` · ${plural(row.compactions, "compaction")}`}</p>
    ${trouble && html`<p class="made problem">The last request failed: ${reasonOf(row.error)}.</p>`}
  </li>`;
}

const WAITING = ["reading", "waiting"];

/** How many requests run, wait for the model, and came today. */
function Totals({ rows }) {
  const midnight = new Date().setHours(0, 0, 0, 0) / 1000;
  const outcomes = useOutcomes();
  const running = rows.filter((row) => row.state !== "idle");
  const waiting = running.filter((row) => WAITING.includes(row.state)).length;
  const today = outcomes.filter(({ at }) => at >= midnight).length;
  return html`<p class="totals"><b>${number(running.length - waiting)}</b> active · <b>${number(waiting)}</b> waiting · <b>${today < 500 ? number(today) : "500+"}</b> today</p>`;
}

export function Conversations() {
  const { rows } = useFeed();
  const [chores, setChores] = useState(false);
  const all = [...rows.values()].sort((a, b) => b.last_at - a.last_at);
  const shown = all.filter((row) => chores || !row.background);
  return html`<${Heading} note="What fills each context window.">Conversations<//>
    <${Totals} rows=${all} />
    ${all.length > 0 && html`<${Legend} />`}
    ${all.some((row) => row.background) &&
    html`<label class="check"><input type="checkbox" checked=${chores} onChange=${(event) => setChores(event.target.checked)} /> Show background tasks (titles, tags)</label>`}
    ${shown.length
      ? html`<ul class="rows">${shown.map((row) => html`<${Row} key=${row.id} row=${row} />`)}</ul>`
      : html`<p class="empty">No conversations yet. Point a client at Spillway, or <a href="#/start">try it here</a>.</p>`}`;
}

// The summary that stands for its beginning, which can be forgotten.

const VERDICTS = {
  kept: "accepted",
  mended: "accepted after corrections",
  failed: "no answer from the model",
  empty: "rejected: empty",
  refusal: "rejected: the model refused",
  loop: "rejected: it repeats itself",
  cut: "rejected: cut off",
  language: "rejected: in another language",
  copy: "rejected: a copy of the conversation",
  gaps: "rejected: too much was missing",
};
const BY = { written: "written by the model", extract: "your own statements, extracted by code" };

/** A button that deletes, after a question. */
function Forget({ label = "Forget summary", word = "Forget", question, busy, onDo }) {
  const [open, setOpen] = useState(false);
  if (!open) return html`<button class="quiet" disabled=${busy} onClick=${() => setOpen(true)}>${label}</button>`;
  return html`<${Question} label=${label} word=${word} question=${question} busy=${busy} onDo=${onDo} onLeave=${() => setOpen(false)} />`;
}

function Question({ label, word, question, busy, onDo, onLeave }) {
  const leave = useFocus();
  return html`<span class="sure" role="group" aria-label=${label}>
    <span>${question}</span>
    <button class="stop" disabled=${busy} onClick=${onDo}>${word}</button>
    <button class="quiet" ref=${leave} onClick=${onLeave}>Cancel</button>
  </span>`;
}

/** Deletes what is stored of a conversation, and leaves it. */
function Delete({ row }) {
  const [failed, setFailed] = useState(null);
  const remove = async () => {
    try {
      await act("DELETE", `conversations/${encodeURIComponent(row.id)}`);
      announce(`${titleOf(row)}: deleted`);
      location.hash = "#/conversations";
    } catch (problem) {
      setFailed(problem);
    }
  };
  return html`<p><${Forget} label="Delete conversation" word="Delete" busy=${row.state !== "idle"} onDo=${remove}
      question="What Spillway has stored of it is deleted: summaries, its archive, stored responses, saved slots." /></p>
    <${Problem} error=${failed} />`;
}

/** Saves all of a conversation that is in memory as a file. */
function Export({ row }) {
  const [failed, setFailed] = useState(null);
  const save = async () => {
    try {
      const written = await text(`conversations/${encodeURIComponent(row.id)}/export`);
      const href = URL.createObjectURL(new Blob([written], { type: "text/markdown" }));
      Object.assign(document.createElement("a"), { href, download: `${row.id}.md` }).click();
      URL.revokeObjectURL(href);
      announce(`${titleOf(row)}: exported`);
    } catch (problem) {
      setFailed(problem);
    }
  };
  return html`<p><button class="quiet" onClick=${save}>Export</button></p><${Problem} error=${failed} />`;
}

/** Compacts now, and shows the tokens before and after. */
function Compact({ row }) {
  const [focus, setFocus] = useState("");
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState(null);
  const [done, setDone] = useState(null);
  const compact = async (event) => {
    event.preventDefault();
    setBusy(true);
    setFailed(null);
    setDone(null);
    try {
      const told = await act("POST", `conversations/${encodeURIComponent(row.id)}/compact`, { focus });
      setDone(told);
      announce(told.message);
    } catch (problem) {
      setFailed(problem);
    }
    setBusy(false);
  };
  return html`<form class="compact" onSubmit=${compact}>
    <label>Focus (optional) <input value=${focus} maxlength="2000" placeholder="what to keep in detail" onInput=${(event) => setFocus(event.target.value)} /></label>
    <button disabled=${busy || row.state !== "idle"}>${busy ? "Compacting …" : "Compact now"}</button>
    <${Problem} error=${failed} />
    ${done && html`<p class="made">${done.compacted ? `${number(done.tokens_before)} → ${number(done.tokens_after)} tokens, ${done.summary ? BY[done.summary] : "without a summary"}` : done.message}</p>`}
  </form>`;
}

/** What every prompt holds word for word; what was pinned here can be taken off. */
function Pins({ row }) {
  const path = `conversations/${encodeURIComponent(row.id)}/pins`;
  const [changes, setChanges] = useState(0);
  const [failed, setFailed] = useState(null);
  const { data } = useAsked(() => get(path), [path, changes, row.turns, row.state === "idle"]);
  const pins = data?.pins ?? [];
  const remove = async (gone) => {
    setFailed(null);
    try {
      await act("PUT", path, { pins: pins.filter((pin) => !pin.said && pin !== gone).map(({ text }) => text) });
      announce("Unpinned.");
      setChanges(changes + 1);
    } catch (problem) {
      setFailed(problem);
    }
  };
  if (!pins.length) return null;
  return html`<section aria-labelledby="pins">
    <h2 id="pins">Pins</h2>
    <p class="made">${number(data.tokens)} of at most ${number(data.most)} tokens</p>
    <ol>${pins.map((pin, place) => html`<li key=${pin.text}><${Text} label=${`Pin ${place + 1}`}>${pin.text}<//>
      ${pin.said ? html`<p class="made">Set by a message: <code>/unpin ${place + 1}</code> in the chat removes it.</p>` : html`<button class="quiet" aria-label=${`Unpin ${place + 1}`} onClick=${() => remove(pin)}>Unpin</button>`}</li>`)}</ol>
    <${Problem} error=${failed} />
  </section>`;
}

function Block({ block, number: place, several }) {
  return html`<article class="block">
    ${several && html`<h3>Part ${place}</h3>`}
    <${Text} label=${several ? `Text of part ${place}` : "Text of the summary"}>${block.text}<//>
    ${block.appended && html`<details><summary>Names and figures added by code</summary><${Text} label="Names and figures">${block.appended}<//></details>`}
    ${block.rules?.length > 0 && html`<h3>Your rules, word for word</h3><ul>${block.rules.map((rule) => html`<li key=${rule}>${rule}</li>`)}</ul>`}
    <p class="made">${BY[block.by] ?? block.by} · ${number(block.tokens)} tokens</p>
  </article>`;
}

function Summary({ row }) {
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState(null);
  const [changes, setChanges] = useState(0);
  const path = `conversations/${encodeURIComponent(row.id)}/summary`;
  const point = row.checkpoint;
  const { data, error } = useAsked(async () => (point?.summary ? get(path) : null), [row.id, point?.created_at, point?.summary, point?.covered, changes]);

  if (feed.session?.content === false) {
    return html`<section aria-labelledby="summary"><h2 id="summary">Summary</h2><p>Content is hidden for this key.</p></section>`;
  }
  const forget = async () => {
    setBusy(true);
    setFailed(null);
    try {
      await act("DELETE", path);
      announce("The next prompt is sent without this summary.");
      setChanges(changes + 1);
    } catch (problem) {
      setFailed(problem);
    }
    setBusy(false);
  };
  const blocks = data?.blocks ?? [];
  return html`<section aria-labelledby="summary">
    <h2 id="summary">Summary</h2>
    <${Problem} error=${error?.code === "no_summary" ? null : error} /><${Problem} error=${failed} />
    <${Compact} row=${row} />
    ${!data && html`<p class="empty">Nothing has been summarised yet.</p>`}
    ${data && html`<${Facts} facts=${[
      ["replaces", data.checkpoint && plural(data.checkpoint.covered, "message")],
      ["tokens", `${number(data.tokens_before)} → ${number(data.tokens_after)}`],
      ["since", data.checkpoint && clock(data.checkpoint.created_at)],
      ["earlier checkpoints", data.earlier],
      ["check", data.verdicts?.length ? html`<ul class="plain">${data.verdicts.map(({ at, verdict }) => html`<li key=${at}>${clock(at)}: ${VERDICTS[verdict] ?? verdict}</li>`)}</ul>` : "none since Spillway was started"],
    ]} />`}
    ${data?.note && html`<p class="made">${data.note}</p>`}
    ${blocks.map((block, place) => html`<${Block} key=${block.index} block=${block} number=${place + 1} several=${blocks.length > 1} />`)}
    ${data && html`<${Forget} key=${changes} busy=${busy} onDo=${forget}
      question=${data.earlier ? "The earlier checkpoint is used instead." : "The next prompt holds the whole history, or is compacted again."} />`}
  </section>`;
}

export function Conversation({ argument: id }) {
  const told = useFeed();
  const live = told.rows.get(id);
  // The timeline is asked for when something ended, and when something was shortened, not with each token.
  const stamp = [live?.turns, live?.compactions, live?.checkpoint?.created_at, live?.state === "idle", live?.last_at].join();
  const { data, error } = useAsked(() => get(`conversations/${encodeURIComponent(id)}`), [id, stamp]);
  const row = live ?? data;
  if (!row) return html`<${Heading}>Conversation<//><${Problem} error=${error} />`;
  return html`<${Heading} note=${madeOf(row)}>${titleOf(row)}<//>
    <${Problem} error=${error} />
    <div class="now"><${State} row=${row} /><${Speed} row=${row} /><${Stop} row=${row} /></div>
    <${Bar} row=${row} />
    <p class="made">${held(row)}${row.not_sent_tokens > 0 && ` · ${number(row.not_sent_tokens)} tokens saved`}</p>
    <${Legend} row=${row} />
    <${Timeline} turns=${data?.timeline ?? []} row=${row} />
    <${Summary} row=${row} />
    <${Pins} row=${row} />
    <${Export} row=${row} />
    <${Delete} row=${row} />`;
}

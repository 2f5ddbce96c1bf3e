// All conversations, one row each, live; and one of them: its window, its summary, its turns.
import { act, get } from "../api.js";
import { announce, feed, useFeed } from "../feed.js";
import { Bar, Change, Facts, Heading, Legend, Problem, Text, cause, clock, fill, html, number, percent, plural, seconds, stateName, titleOf, to, useAsked, useFocus, useState } from "../lib.js";

/** Who talks to what, in one line. */
export const madeOf = (row) =>
  [row.model, row.backend, row.client, row.dialect, plural(row.turns, "turn")].filter(Boolean).join(" · ");

/** Tokens in the window. */
export const held = (row) =>
  `${number((row.prompt ?? 0) + (row.answer ?? 0))} of ${number(row.window)} tokens` + (row.fill == null ? "" : ` (${percent(row.fill)})`);

export const State = ({ row }) => html`<span class=${`state ${row.state}`}>${stateName(row.state)}</span>`;

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
  return html`<li class="row" data-id=${row.id}>
    <div class="what">
      <a class="title" href=${to("c", row.id)}>${titleOf(row)}</a>
      <p class="made">${madeOf(row)}</p>
    </div>
    <div class="now">
      <${State} row=${row} /><${Speed} row=${row} /><${Stop} row=${row} />
      <time class="made">${clock(row.last_at)}</time>
    </div>
    <${Bar} row=${row} />
    <p class="made">${held(row)}${row.compactions > 0 && ` · ${plural(row.compactions, "compaction")}`}${row.error && ` · error: ${row.error}`}</p>
  </li>`;
}

export function Conversations() {
  const { rows } = useFeed();
  const [chores, setChores] = useState(false);
  const all = [...rows.values()].sort((a, b) => b.last_at - a.last_at);
  const shown = all.filter((row) => chores || !row.background);
  return html`<${Heading} note="How full each model's window is, and with what.">Conversations<//>
    ${all.length > 0 && html`<${Legend} />`}
    ${all.some((row) => row.background) &&
    html`<label class="check"><input type="checkbox" checked=${chores} onChange=${(event) => setChores(event.target.checked)} /> Show clients' chores, such as titles</label>`}
    ${shown.length
      ? html`<ul class="rows">${shown.map((row) => html`<${Row} key=${row.id} row=${row} />`)}</ul>`
      : html`<p class="empty">Nothing yet. Point a client at Spillway, or <a href="#/start">try it here</a>.</p>`}`;
}

// The summary that stands for its beginning, which can be forgotten.

const VERDICTS = {
  kept: "fit as it was",
  mended: "fit once code had mended it",
  failed: "not used: there was no answer",
  empty: "not used: it said nothing",
  refusal: "not used: the model refused",
  loop: "not used: it went round in circles",
  cut: "not used: it was cut off",
  language: "not used: it was in another language",
  copy: "not used: it was a copy",
  gaps: "not used: too much was missing",
};
const BY = { written: "written by the model", extract: "an extract made by code" };

/** A button that deletes, after a question. */
function Forget({ question, busy, onDo }) {
  const [open, setOpen] = useState(false);
  if (!open) return html`<button disabled=${busy} onClick=${() => setOpen(true)}>Forget it</button>`;
  return html`<${Question} question=${question} busy=${busy} onDo=${onDo} onLeave=${() => setOpen(false)} />`;
}

function Question({ question, busy, onDo, onLeave }) {
  const leave = useFocus();
  return html`<span class="sure" role="group" aria-label="Forget it">
    <span>${question}</span>
    <button class="stop" disabled=${busy} onClick=${onDo}>Forget it</button>
    <button class="quiet" ref=${leave} onClick=${onLeave}>Leave it</button>
  </span>`;
}

function Block({ block, number: place, several }) {
  return html`<article class="block">
    ${several && html`<h3>Part ${place}</h3>`}
    <${Text} label=${several ? `Text of part ${place}` : "Text of the summary"}>${block.text}<//>
    ${block.appended && html`<details><summary>Names and figures that code added</summary><${Text} label="Names and figures">${block.appended}<//></details>`}
    ${block.rules?.length > 0 && html`<h3>Rules of the user, word for word</h3><ul>${block.rules.map((rule) => html`<li key=${rule}>${rule}</li>`)}</ul>`}
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
    return html`<section aria-labelledby="summary"><h2 id="summary">Summary</h2><p>What was said is not shown here.</p></section>`;
  }
  const forget = async () => {
    setBusy(true);
    setFailed(null);
    try {
      await act("DELETE", path);
      announce("The summary is forgotten, from the next prompt on.");
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
    ${!data && html`<p class="empty">None stands in its prompt.</p>`}
    ${data && html`<${Facts} facts=${[
      ["stands for", data.checkpoint && plural(data.checkpoint.covered, "message")],
      ["tokens", `${number(data.tokens_before)} → ${number(data.tokens_after)}`],
      ["since", data.checkpoint && clock(data.checkpoint.created_at)],
      ["checkpoints before it", data.earlier],
      ["verification", data.verdicts?.length ? html`<ul class="plain">${data.verdicts.map(({ at, verdict }) => html`<li key=${at}>${clock(at)}: ${VERDICTS[verdict] ?? verdict}</li>`)}</ul>` : "none was asked for since Spillway was started"],
    ]} />`}
    ${blocks.map((block, place) => html`<${Block} key=${block.index} block=${block} number=${place + 1} several=${blocks.length > 1} />`)}
    ${data && html`<${Forget} key=${changes} busy=${busy} onDo=${forget}
      question=${data.earlier ? "The checkpoint before it will hold instead." : "The whole history will be sent instead, or compacted anew."} />`}
  </section>`;
}

// The turns of it.

const RUNGS = {
  cap: "capped tool results",
  mask: "masked old tool results",
  duplicates: "dropped duplicates",
  summarise: "summarised",
  extract: "made an extract",
  oversize: "cut long messages",
  unread: "capped new tool results",
  trim: "trimmed the oldest turns",
  "taken over": "waited for another request's",
};

/** What was done to a request, in words. */
export function done(turn) {
  const words = (turn.rungs ?? []).map((rung) => RUNGS[rung] ?? rung);
  if (!words.length) words.push(turn.action);
  if (turn.recalled) words.push(`recalled ${plural(turn.recalled, "passage")}`);
  if (turn.left_out) words.push(`left out ${number(turn.left_out)} tokens of a message`);
  if (turn.tools) words.push(`${turn.tools} tools`);
  if (turn.pauses) words.push(`paused ${plural(turn.pauses, "time")}, resumed ${plural(turn.resumes, "time")}`);
  if (turn.stopped) words.push("stopped here");
  if (turn.unfinished) words.push("ended for want of room");
  return words;
}

/** How much of a prompt the backend did not have to read again. */
export function reuse({ repeated, reused, unlike, prompt_tokens, tokens_after }) {
  if (repeated == null && reused == null) return null;
  const whole = prompt_tokens ?? tokens_after;
  const told = reused != null ? `${number(reused)} of ${number(whole)} tokens were not read again` : `${number(repeated)} tokens were as before; the backend tells no more`;
  return unlike ? `${told}: ${cause(unlike)}` : told;
}

/** A checkpoint in words. */
export const checkpointed = (point) =>
  point && `${point.kind}, stands for ${plural(point.covered, "message")}${point.summary ? `, summary ${point.summary}` : ""}`;

function Turn({ turn }) {
  const [before, after] = [turn.tokens_before, turn.tokens_after].map((tokens) => fill(tokens, turn.window));
  return html`<li class="turn">
    <div class="when"><time>${clock(turn.at)}</time><a href=${to("r", turn.id)} aria-label=${`What was sent at ${clock(turn.at)}`}>What was sent</a></div>
    <div class="fill">
      <${Change} before=${before} after=${after} />
      <span>${percent(before)} → ${percent(after)}</span>
    </div>
    <ul class="chips">${done(turn).map((word) => html`<li key=${word}>${word}</li>`)}</ul>
    <p class="made">
      ${[
        turn.running ? "running" : `waited ${seconds(turn.first_byte)}, all of it ${seconds(turn.seconds)}`,
        turn.compaction_seconds > 0 && `compacting took ${seconds(turn.compaction_seconds)}`,
        reuse(turn),
        turn.checkpoint && `checkpoint: ${checkpointed(turn.checkpoint)}`,
        turn.error && `error: ${turn.error}`,
      ]
        .filter(Boolean)
        .join(" · ")}
    </p>
  </li>`;
}

export function Conversation({ argument: id }) {
  const told = useFeed();
  const live = told.rows.get(id);
  // The timeline is asked for when something ended, and when something was shortened, not with each token.
  const stamp = [live?.turns, live?.compactions, live?.checkpoint?.created_at, live?.state === "idle", live?.last_at].join();
  const { data, error } = useAsked(() => get(`conversations/${encodeURIComponent(id)}`), [id, stamp]);
  const row = live ?? data;
  if (!row) return html`<${Heading}>Conversation<//><${Problem} error=${error} />`;
  const turns = [...(data?.timeline ?? [])].reverse();
  return html`<${Heading} note=${madeOf(row)}>${titleOf(row)}<//>
    <${Problem} error=${error} />
    <div class="now"><${State} row=${row} /><${Speed} row=${row} /><${Stop} row=${row} /></div>
    <${Bar} row=${row} />
    <p class="made">${held(row)}${row.not_sent_tokens > 0 && ` · ${number(row.not_sent_tokens)} tokens were not sent so far`}</p>
    <${Legend} row=${row} />
    <${Summary} row=${row} />
    <section aria-labelledby="turns">
      <h2 id="turns">Timeline</h2>
      <p class="made">Newest first. How full the window was when the request came, and when it was sent.</p>
      <ol class="turns" reversed>${turns.map((turn) => html`<${Turn} key=${turn.id} turn=${turn} />`)}</ol>
    </section>`;
}

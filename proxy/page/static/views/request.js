// One request: what happened to it, and what was changed of what the client sent.
import { act, get } from "../api.js";
import { announce, useFeed } from "../feed.js";
import { Facts, Heading, Problem, Text, fill, html, moment, number, percent, plural, promptOf, seconds, to, troubled, useAsked, useState } from "../lib.js";
import { CAUSES, checkpointed, reuse, sentence } from "./timeline.js";

const NOTES = {
  kept: "unchanged",
  shortened: "sent in a shorter form",
  masked: "a note replaces a tool result",
  summarised: "replaces earlier messages",
  recalled: "recalled passages in front of the message",
  restored: "completed with what the client had left out",
  mended: "changed for the backend, or by pins",
  added: "by Spillway",
  removed: "not forwarded",
};

/** What a row shows of a change: the new text alone; of what was recalled, what stands in front of the message. */
function shown({ what, before, after }) {
  if (what === "recalled" && before && after?.endsWith(before)) return after.slice(0, -before.length).trimEnd();
  return after ?? before;
}

/** Pins what a message says in its conversation. */
function Pin({ path, label, text }) {
  const [failed, setFailed] = useState(null);
  const pin = async () => {
    setFailed(null);
    try {
      const { pins } = await get(path);
      await act("PUT", path, { pins: [...pins.filter(({ said }) => !said).map((each) => each.text), text] });
      announce("Pinned: every prompt holds it word for word.");
    } catch (problem) {
      setFailed(problem);
    }
  };
  return html`<button class="quiet" aria-label=${`Pin ${label}`} onClick=${pin}>Pin</button><${Problem} error=${failed} />`;
}

/** What a block stands for: asked for when it is opened, for it may be long. */
function Covered({ path, pins, row }) {
  const [open, setOpen] = useState(false);
  const { data, error } = useAsked(() => (open ? get(`${path}/diff`, { full: "true" }) : Promise.resolve(null)), [open]);
  const covered = data?.rows.find(({ forwarded }) => forwarded === row.forwarded)?.covered;
  return html`<details onToggle=${(event) => setOpen(event.target.open)}>
    <summary>${plural(row.sent.length, "message")} it replaces</summary>
    <${Problem} error=${error} />
    ${covered?.map(({ index, role, text }) => html`<div key=${index}><h4>${index + 1}. ${role} <${Pin} path=${pins} label=${`message ${index + 1}`} text=${text} /></h4><${Text} label=${`Message ${index + 1}, ${role}`}>${text}<//></div>`)}
  </details>`;
}

const where = ({ sent }) => (sent.length ? (sent.length > 1 ? `messages ${sent[0] + 1} to ${sent.at(-1) + 1}` : `message ${sent[0] + 1}`) : "");

function Row({ path, pins, row }) {
  const label = `${row.what}: ${row.role}, ${where(row)}`;
  const earlier = row.before != null && row.after != null && row.before !== row.after;
  return html`<li class=${`change-row ${row.what}`}>
    <p class="label"><span class=${`kind ${row.what}`}>${row.what}</span> <b>${row.role}</b>${" "}<span class="made">${[where(row), plural(row.tokens, "token"), NOTES[row.what]].filter(Boolean).join(" · ")}</span>${" "}${row.before && pins && html`<${Pin} path=${pins} label=${where(row)} text=${row.before} />`}</p>
    <${Text} label=${label}>${row.after == null ? html`<del>${row.before}</del>` : shown(row)}<//>
    ${earlier && html`<details><summary>As the client sent it, ${number(row.before.length)} characters</summary><${Text} label=${`As sent, ${where(row)}`}>${row.before}<//></details>`}
    ${row.what === "summarised" && html`<${Covered} path=${path} pins=${pins} row=${row} />`}
  </li>`;
}

const Rows = ({ path, pins, rows }) => html`<ol class="changes">${rows.map((row) => html`<${Row} key=${row.forwarded ?? `sent-${row.sent[0]}`} path=${path} pins=${pins} row=${row} />`)}</ol>`;

function Unchanged({ path, pins, rows }) {
  const [open, setOpen] = useState(false);
  const tokens = rows.reduce((sum, row) => sum + (row.tokens ?? 0), 0);
  return html`<details class="unchanged" onToggle=${(event) => setOpen(event.target.open)}>
    <summary>${plural(rows.length, "message")} unchanged, ${number(tokens)} tokens</summary>
    ${open && html`<${Rows} path=${path} pins=${pins} rows=${rows} />`}
  </details>`;
}

function Diff({ path, turn }) {
  const none = !turn.attempts && !turn.running;
  const pins = turn.conversation && `conversations/${encodeURIComponent(turn.conversation)}/pins`;
  const { data, error } = useAsked(async () => (none ? null : get(`${path}/diff`)), [path, turn.running]);
  const [kept, changed] = [true, false].map((is) => (data?.rows ?? []).filter(({ what }) => (what === "kept") === is));
  return html`<section aria-labelledby="diff">
    <h2 id="diff">What was changed</h2>
    ${none && html`<p class="empty">Nothing was forwarded.</p>`}
    ${error?.code === "not_kept" ? html`<p class="empty">The messages of this request are no longer in memory.</p>` : error?.code === "content_not_shown" ? html`<p class="empty">Content is hidden for this key.</p>` : html`<${Problem} error=${error} />`}
    ${data && html`
      <p class="made">${number(data.tokens.sent)} tokens sent by the client, ${number(data.tokens.forwarded)} forwarded.${data.tools?.changed && ` ${number(data.tools.forwarded)} of ${plural(data.tools.sent, "tool")} forwarded, with shorter descriptions or as text.`}</p>
      ${!changed.length && html`<p class="done">Nothing: it was forwarded as the client sent it.</p>`}
      <${Rows} path=${path} pins=${pins} rows=${changed} />
      ${kept.length > 0 && html`<${Unchanged} path=${path} pins=${pins} rows=${kept} />`}`}
  </section>`;
}

/** What is told of an event beside its name; of the others each field that says something. */
const TOLD = {
  measured: ({ tokens, window }) => `${number(tokens)} of ${number(window)} tokens`,
  compacted: ({ tokens_before: before, tokens_after: after, rungs, seconds: took }) =>
    before === after ? "nothing could be shortened" : `${number(before)} → ${plural(after, "token")} in ${seconds(took)}${rungs.length ? `: ${rungs.join(", ")}` : ""}`,
  repeated: ({ tokens, prompt, why }) => `${number(tokens)} of ${plural(prompt, "token")} from the last prompt${why ? `: ${CAUSES[why] ?? why}` : ""}`,
  reused: ({ tokens }) => `${plural(tokens, "token")} from the backend's cache`,
};
const fields = ({ at, event, ...rest }) =>
  Object.entries(rest)
    .filter(([, value]) => value != null && value !== "" && value !== false)
    .map(([name, value]) => (name === "seconds" ? seconds(value) : `${name} ${typeof value === "number" ? number(value) : value}`.replaceAll("_", " ")))
    .join(", ");

const Events = ({ events }) => html`<section aria-labelledby="events">
  <h2 id="events">What happened</h2>
  <ol class="events">${events.map((event, place) => html`<li key=${place}>
    <span class="at">${event.at.toFixed(2)} s</span> <b>${event.event.replaceAll("_", " ")}</b> ${(TOLD[event.event] ?? fields)(event)}</li>`)}</ol>
</section>`;

export function Request({ argument: id }) {
  const live = useFeed().outcomes.find((outcome) => outcome.id === id);
  const path = `requests/${encodeURIComponent(id)}`;
  const { data: turn, error } = useAsked(() => get(path), [id, live?.seconds]);
  if (!turn) return html`<${Heading}>Request<//><${Problem} error=${error} />`;
  return html`<${Heading} note=${`${moment(turn.at)} · ${turn.id}`}>Request<//>
    <p class=${troubled(turn) ? "problem" : ""}>${sentence(turn)}${turn.conversation && html` <a href=${to("c", turn.conversation)}>Open the conversation</a>`}</p>
    <${Diff} path=${path} turn=${turn} />
    <h2>Figures</h2>
    <${Facts} facts=${[
      ["status", `${turn.status || "running"}${turn.error ? `, ${turn.error}` : ""}`],
      ["model", `${turn.model} at ${turn.backend}`],
      ["dialect", turn.dialect],
      ["window", `${number(turn.window)} tokens`],
      ["prompt", `${promptOf(turn)} tokens, ${promptOf(turn, (tokens) => percent(fill(tokens, turn.window)))}`],
      ["time to first byte", turn.first_byte != null && seconds(turn.first_byte)],
      ["total time", seconds(turn.seconds)],
      ["answer", turn.completion_tokens != null && `${number(turn.completion_tokens)} tokens`],
      ["cached by the backend", reuse(turn)],
      ["checkpoint", checkpointed(turn.checkpoint)],
      ["attempts", number(turn.attempts)],
      ["messages sent", turn.messages],
    ]} />
    <${Events} events=${turn.events ?? []} />`;
}

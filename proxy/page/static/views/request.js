// One request: what happened to it, and what the client sent beside what was forwarded.
import { get } from "../api.js";
import { useFeed } from "../feed.js";
import { Facts, Heading, Problem, Text, fill, html, moment, number, percent, plural, seconds, to, useAsked, useMemo, useState } from "../lib.js";
import Differ from "../vendor/diff.js";
import { checkpointed, done, reuse } from "./conversations.js";

const WORD = /\s+|[\p{L}\p{N}_]+|./gsu;
const PATIENCE = { maxEditLength: 2000, timeout: 200 }; // a message may be a book
const AROUND = 160; // characters of what stayed that are shown beside a change

class Words extends Differ {
  tokenize(words) {
    return words;
  }
}

/** The pieces of both texts in order: `{kind: "same" | "gone" | "new", text}`. */
function changes(before, after) {
  const [old, now] = [before.match(WORD) ?? [], after.match(WORD) ?? []];
  const end = [];
  let start = 0;
  // What is the same at both ends is most of it, and need not be searched.
  while (old.length && now.length && old.at(-1) === now.at(-1)) now.pop(), end.push(old.pop());
  while (start < Math.min(old.length, now.length) && old[start] === now[start]) start += 1;
  const begin = old.splice(0, start) && now.splice(0, start);
  const found = new Words().diff(old, now, PATIENCE) ?? [
    { removed: true, value: old.join("") },
    { added: true, value: now.join("") },
  ];
  const pieces = [{ value: begin.join("") }, ...found, { value: end.reverse().join("") }].filter(({ value }) => value);
  return pieces.map(({ added, removed, value }) => ({ kind: added ? "new" : removed ? "gone" : "same", text: value }));
}

/** A long piece that stayed, with its middle left out of sight: `[beginning, how many characters, end]`. */
function folded(text) {
  return text.length > 3 * AROUND ? [text.slice(0, AROUND), text.length - 2 * AROUND, text.slice(-AROUND)] : null;
}

const NOTES = {
  kept: "as it was sent",
  shortened: "its middle was left out",
  masked: "a note is left of a tool's result",
  summarised: "stands for what was said before",
  recalled: "passages that the message needs stand in front of it",
  mended: "changed so that the backend takes it",
  added: "not the client's own",
  removed: "not forwarded",
};

function Same({ text }) {
  const [open, setOpen] = useState(false);
  const parts = folded(text);
  if (open || !parts) return html`<span>${text}</span>`;
  return html`<span>${parts[0]}</span><button class="fold" onClick=${() => setOpen(true)}>… ${number(parts[1])} characters as they were …</button><span>${parts[2]}</span>`;
}

const PIECES = {
  same: ({ text }) => html`<${Same} text=${text} />`,
  gone: ({ text }) => html`<del>${text}</del>`,
  new: ({ text }) => html`<ins>${text}</ins>`,
};

function Changed({ row, label }) {
  const pieces = useMemo(() => changes(row.before ?? "", row.after ?? ""), [row.before, row.after]);
  return html`<${Text} label=${label}>${pieces.map(({ kind, text }, place) => html`<${PIECES[kind]} key=${place} text=${text} />`)}<//>`;
}

/** What a block stands for: asked for when it is opened, for it may be long. */
function Covered({ path, row }) {
  const [open, setOpen] = useState(false);
  const { data, error } = useAsked(() => (open ? get(`${path}/diff`, { full: "true" }) : Promise.resolve(null)), [open]);
  const covered = data?.rows.find(({ forwarded }) => forwarded === row.forwarded)?.covered;
  return html`<details onToggle=${(event) => setOpen(event.target.open)}>
    <summary>${plural(row.sent.length, "message")} of the client that it stands for</summary>
    <${Problem} error=${error} />
    ${covered?.map(({ index, role, text }) => html`<div key=${index}><h4>${index + 1}. ${role}</h4><${Text} label=${`Message ${index + 1}, ${role}`}>${text}<//></div>`)}
  </details>`;
}

const where = ({ sent }) => (sent.length ? (sent.length > 1 ? `messages ${sent[0] + 1} to ${sent.at(-1) + 1}` : `message ${sent[0] + 1}`) : "no message of the client");

function Row({ path, row }) {
  const label = `${row.what}: ${row.role}, ${where(row)}`;
  const whole = row.before == null || row.after == null;
  return html`<li class=${`change-row ${row.what}`}>
    <p class="label"><span class=${`kind ${row.what}`}>${row.what}</span> <b>${row.role}</b>${" "}<span class="made">${where(row)} · ${number(row.tokens)} tokens · ${NOTES[row.what]}</span></p>
    ${whole ? html`<${Text} label=${label}>${row.after == null ? html`<del>${row.before}</del>` : row.what === "kept" ? row.after : html`<ins>${row.after}</ins>`}<//>` : html`<${Changed} row=${row} label=${label} />`}
    ${row.what === "summarised" && html`<${Covered} path=${path} row=${row} />`}
  </li>`;
}

/** Rows with those that were kept gathered, as they say nothing new. */
function gathered(rows) {
  const groups = [];
  for (const row of rows) {
    const kept = row.what === "kept";
    if (kept && groups.at(-1)?.kept) groups.at(-1).rows.push(row);
    else groups.push({ kept, rows: [row] });
  }
  return groups;
}

function Group({ path, group }) {
  const [open, setOpen] = useState(false);
  const rows = group.rows.map((row) => html`<${Row} key=${row.forwarded ?? `sent-${row.sent[0]}`} path=${path} row=${row} />`);
  if (!group.kept) return rows;
  const tokens = group.rows.reduce((sum, row) => sum + (row.tokens ?? 0), 0);
  return html`<li class="change-row kept"><details onToggle=${(event) => setOpen(event.target.open)}>
    <summary>${plural(group.rows.length, "message")} kept as sent, ${number(tokens)} tokens</summary>
    ${open && html`<ol class="changes">${rows}</ol>`}
  </details></li>`;
}

function Diff({ path, running }) {
  const { data, error } = useAsked(() => get(`${path}/diff`), [path, running]);
  return html`<section aria-labelledby="diff">
    <h2 id="diff">Sent and forwarded</h2>
    ${error?.code === "not_kept" ? html`<p class="empty">Its messages are not kept any more.</p>` : error?.code === "content_not_shown" ? html`<p class="empty">What was said is not shown here.</p>` : html`<${Problem} error=${error} />`}
    ${data && html`
      <p class="made">The client's ${number(data.tokens.sent)} tokens became ${number(data.tokens.forwarded)}.${data.tools?.changed && ` Of ${plural(data.tools.sent, "tool")} ${number(data.tools.forwarded)} went on, in another form.`}</p>
      ${data.same && html`<p class="done">It was forwarded as it was sent.</p>`}
      <ul class="chips">${Object.entries(data.counts).filter(([, count]) => count).map(([kind, count]) => html`<li key=${kind} class=${`kind ${kind}`}>${number(count)} ${kind}</li>`)}</ul>
      <ol class="changes">${gathered(data.rows).map((group, place) => html`<${Group} key=${place} path=${path} group=${group} />`)}</ol>`}
  </section>`;
}

const told = (event) =>
  Object.entries(event)
    .filter(([name, value]) => !["at", "event"].includes(name) && value != null && value !== "")
    .map(([name, value]) => `${name} ${typeof value === "number" ? number(value) : value}`)
    .join(", ");

const Events = ({ events }) => html`<section aria-labelledby="events">
  <h2 id="events">What happened</h2>
  <ol class="events">${events.map((event, place) => html`<li key=${place}>
    <span class="at">${event.at.toFixed(2)} s</span> <b>${event.event.replaceAll("_", " ")}</b> ${told(event)}</li>`)}</ol>
</section>`;

export function Request({ argument: id }) {
  const live = useFeed().outcomes.find((outcome) => outcome.id === id);
  const path = `requests/${encodeURIComponent(id)}`;
  const { data: turn, error } = useAsked(() => get(path), [id, live?.seconds]);
  if (!turn) return html`<${Heading}>Request<//><${Problem} error=${error} />`;
  return html`<${Heading} note=${`${moment(turn.at)} · ${turn.id}`}>Request<//>
    <p>${turn.conversation && html`<a href=${to("c", turn.conversation)}>Its conversation</a>`}</p>
    <${Facts} facts=${[
      ["status", `${turn.status || "running"}${turn.error ? `, ${turn.error}` : ""}`],
      ["model", `${turn.model} at ${turn.backend}`],
      ["dialect", turn.dialect],
      ["what was done", done(turn).join(", ")],
      ["window", `${number(turn.window)} tokens`],
      ["prompt", `${number(turn.tokens_before)} → ${number(turn.tokens_after)} tokens, ${percent(fill(turn.tokens_before, turn.window))} → ${percent(fill(turn.tokens_after, turn.window))}`],
      ["waited", seconds(turn.first_byte)],
      ["all of it", seconds(turn.seconds)],
      ["answer", turn.completion_tokens != null && `${number(turn.completion_tokens)} tokens`],
      ["reused", reuse(turn)],
      ["checkpoint", checkpointed(turn.checkpoint)],
      ["attempts", number(turn.attempts)],
      ["messages of the client", turn.messages],
    ]} />
    <${Diff} path=${path} running=${turn.running} />
    <${Events} events=${turn.events ?? []} />`;
}

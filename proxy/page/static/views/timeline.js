// The turns of a conversation: how full the window was over time, and one sentence for each.
import { clock, fill, html, number, percent, plural, promptOf, reasonOf, to, troubled } from "../lib.js";

const QUIET = 3; // unchanged turns in a row that are folded into one line
const [HEIGHT, RADIUS] = [160, 6];

const SHORTENED = ["pruned", "compacted", "trimmed", "read", "compacting"];

/** Whether a prompt was shortened before it was sent: an answer may also be, while it is paused. */
const shortened = (turn) => SHORTENED.includes(turn.action) && String(turn.rungs) !== "answer";

/** What was done, in a sentence or a few, as the log has it; of a request that failed, why. */
export function sentence(turn) {
  if (turn.running) return "Running …";
  if (!troubled(turn)) return turn.sentence;
  const size = turn.error === "context_length_exceeded" && turn.window && ` (${promptOf(turn)} of ${plural(turn.window, "token")})`;
  return `${turn.status < 400 || turn.attempts > 0 ? "Failed" : "Refused"}: ${reasonOf(turn.error)}${size || ""}. ${turn.sentence}`;
}

/** How much of a prompt the backend had cached. */
export function reuse({ repeated, reused, unlike, prompt_tokens, tokens_after }) {
  if (repeated == null && reused == null) return null;
  const told = reused != null ? `${number(reused)} of ${number(prompt_tokens ?? tokens_after)} tokens` : `${number(repeated)} tokens repeat the last prompt; the backend reports no more`;
  return unlike ? `${told} (${CAUSES[unlike] ?? unlike})` : told;
}

export const CAUSES = {
  first: "the first prompt",
  tools: "the tools or options changed",
  system: "the system prompt changed",
  edited: "the client edited its history",
  shortened: "Spillway shortened it",
  backend: "the backend had not cached the rest",
};

/** A checkpoint in words. */
export const checkpointed = (point) => point && `${plural(point.covered, "message")}${point.summary ? `, summary ${point.summary}` : ""}`;

/** Turns of which one is like the other, by their action, and how they are called. */
const QUIET_TURNS = { forwarded: "unchanged turns", continued: "turns sent as shortened before", moved: "turns sent to a larger window", shaped: "turns with other changes" };
const quiet = (turn) =>
  QUIET_TURNS[turn.action] && !turn.running && !troubled(turn) && !["recalled", "left_out", "conclusions", "pauses", "unfinished", "stopped"].some((name) => turn[name]);

/** Turns, with those of one action for which nothing was shortened gathered in lists. */
function folded(turns) {
  const groups = [];
  for (const turn of turns) {
    if (quiet(turn) && groups.at(-1)?.[0]?.action === turn.action) groups.at(-1).push(turn);
    else groups.push(quiet(turn) ? [turn] : turn);
  }
  return groups.flatMap((group) => (Array.isArray(group) && group.length < QUIET ? group : [group]));
}

const Turn = ({ turn }) => html`<li class=${`turn ${troubled(turn) ? "trouble" : ""}`}>
  <time>${clock(turn.at)}</time> ${sentence(turn)} <a href=${to("r", turn.id)} aria-label=${`Details of the request at ${clock(turn.at)}`}>Details</a>
</li>`;

function Quiet({ turns }) {
  const [first, last] = [turns.at(-1), turns[0]];
  const fills = [first, last].map(({ tokens_after, window }) => percent(fill(tokens_after, window))).join(" → ");
  return html`<li class="quiet-turns"><details><summary>${number(turns.length)} ${QUIET_TURNS[first.action]}, ${clock(first.at)} to ${clock(last.at)}, ${fills} full</summary>
    <ol>${turns.map((turn) => html`<${Turn} key=${turn.id} turn=${turn} />`)}</ol></details></li>`;
}

export function Timeline({ turns, row }) {
  const newest = [...turns].reverse();
  return html`<section aria-labelledby="turns">
    <h2 id="turns">Timeline</h2>
    <${Chart} turns=${turns} row=${row} />
    <ol class="turns">${folded(newest).map((group) => (Array.isArray(group) ? html`<${Quiet} key=${group.at(-1).id} turns=${group} />` : html`<${Turn} key=${group.id} turn=${group} />`))}</ol>
  </section>`;
}

const MARKS = {
  compacted: [(x, y) => `M${x} ${y + RADIUS}l${-RADIUS} ${-2 * RADIUS}h${2 * RADIUS}z`, "compacted"],
  paused: [(x, y) => `M${x - RADIUS} ${y - RADIUS}h${2 * RADIUS}v${2 * RADIUS}h${-2 * RADIUS}z`, "paused"],
  trouble: [(x, y) => `M${x - RADIUS} ${y - RADIUS}l${2 * RADIUS} ${2 * RADIUS}m0 ${-2 * RADIUS}l${-2 * RADIUS} ${2 * RADIUS}`, "error"],
};

/** Where the marks of a turn stand: `[kind, fill]`. */
function marks(turn, before, end) {
  return [
    shortened(turn) && !troubled(turn) && ["compacted", before],
    turn.pauses > 0 && ["paused", end],
    troubled(turn) && ["trouble", before],
  ].filter(Boolean);
}

/** How full the window was when each request came, when it was sent, and when it was answered. */
function Chart({ turns, row }) {
  const known = turns.filter((turn) => fill(turn.tokens_after, turn.window) != null);
  if (known.length < 2) return null;
  const WIDTH = Math.min(1000, innerWidth); // so that the marks stay as large on a phone
  const step = WIDTH / known.length;
  const y = (full) => HEIGHT - Math.min(full, 1) * (HEIGHT - 4 * RADIUS) - RADIUS;
  const drawn = known.map((turn, place) => {
    const sentAt = fill(turn.tokens_after, turn.window);
    const before = fill(turn.tokens_before, turn.window) ?? sentAt;
    const end = Math.max(sentAt, Math.min(1, sentAt + (turn.completion_tokens ?? 0) / turn.window));
    return { turn, x: (place + 0.2) * step, before, sentAt, end };
  });
  const points = drawn.flatMap(({ x, before, sentAt, end }) => [[x, before], [x, sentAt], [x + step * 0.7, end]]);
  const seen = new Set(drawn.flatMap(({ turn, before, end }) => marks(turn, before, end).map(([kind]) => kind)));
  const { turn: last } = drawn.at(-1);
  return html`<figure class="chart">
    <svg role="img" aria-label=${`Fill of the window over ${plural(known.length, "turn")}, now ${percent(fill(last.tokens_after, last.window))}`} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`}>
      <rect class="room" width=${WIDTH} height=${HEIGHT} />
      ${["trigger", "pause"].map((name) => row.window && row[name] && html`<line key=${name} class=${`mark ${name}`} x1="0" x2=${WIDTH} y1=${y(row[name] / row.window)} y2=${y(row[name] / row.window)} />`)}
      <polyline class="course" points=${points.map(([x, full]) => `${x.toFixed(1)},${y(full).toFixed(1)}`).join(" ")} />
      ${drawn.flatMap(({ turn, x, before, end }) =>
        marks(turn, before, end).map(([kind, full]) => html`<path key=${`${turn.id}${kind}`} class=${`event ${kind}`} d=${MARKS[kind][0](kind === "paused" ? x + step * 0.7 : x, y(full))}><title>${clock(turn.at)}: ${sentence(turn)}</title></path>`),
      )}
    </svg>
    <figcaption class="legend">
      <span>Fill of the window, oldest turn first</span>
      ${[...seen].map((kind) => html`<span key=${kind}><svg class="symbol" aria-hidden="true" viewBox="0 0 16 16"><path class=${`event ${kind}`} d=${MARKS[kind][0](8, 8)} /></svg>${MARKS[kind][1]}</span>`)}
    </figcaption>
  </figure>`;
}

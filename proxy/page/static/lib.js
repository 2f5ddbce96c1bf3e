// What every part of the page uses: elements, hooks, and how figures are written.
import { html, render, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact.js";

export { html, render, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState };

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const MOMENT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hour12: false });

export const UNKNOWN = "unknown";

export const number = (value) => (value == null ? UNKNOWN : NUMBER.format(value));
export const percent = (fraction) => (fraction == null ? UNKNOWN : `${Math.round(fraction * 100)}\u00a0%`);
export const fill = (tokens, window) => (tokens == null || !window ? null : tokens / window);
export const clock = (at) => CLOCK.format(at * 1000);
export const moment = (at) => MOMENT.format(at * 1000);

export function seconds(value) {
  if (value == null) return UNKNOWN;
  if (value > 0 && value < 1) return `${Math.round(value * 1000)} ms`;
  if (Math.abs(value) < 60) return `${number(value)} s`;
  const whole = Math.round(Math.abs(value));
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return `${value < 0 ? "-" : ""}${hours ? `${hours} h ` : ""}${minutes} min ${whole % 60} s`;
}

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

/** The tokens of a prompt: before and after, where it was shortened and sent. */
export function promptOf({ action, tokens_before: before, tokens_after: after, ...turn }, written = number) {
  if (troubled(turn) && !turn.attempts && before) return written(Math.max(before, after));
  return ["forwarded", "continued", "moved", "shaped", "observed", "passed"].includes(action) || String(turn.rungs) === "answer" || before === after ? written(after) : `${written(before)} → ${written(after)}`;
}

const WORDS = {
  idle: "idle",
  reading: "reading the prompt",
  compacting: "compacting",
  waiting: "waiting for the model",
  answering: "answering",
  paused: "paused to compact",
};
/** How a state is called. */
export const stateName = (state) => WORDS[state] ?? state;

const REASONS = {
  context_length_exceeded: "the prompt does not fit the window",
  upstream_unavailable: "the backend can't be reached",
  upstream_timeout: "the backend did not answer in time",
  upstream_refused: "the backend refused to continue",
  upstream_invalid: "the backend's answer was not HTTP",
  upstream_too_large: "the backend's answer was too large",
  overloaded: "too many requests at once",
  model_not_found: "there is no such model",
  internal_error: "an error in Spillway; the log has it",
  client_left: "the client left",
  cancelled: "cancelled",
};
/** Why a request failed, in words. */
export const reasonOf = (code) => REASONS[code] ?? String(code ?? "error").replaceAll("_", " ");

/** Whether a request failed; a client that leaves is no failure. */
export const troubled = ({ error, status = 0 }) => (!!error || status >= 400) && !["client_left", "cancelled", "stopped"].includes(error);

/** What a conversation is called where its first words may not be shown. */
export const titleOf = (row) => row.title || `Conversation ${row.id.replace(/^c_/, "").slice(0, 8)}`;

/** A link to a place of the page. */
export const to = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

/** Run an effect that asks for something, without heeding answers that come too late. */
export function useAsked(ask, needs) {
  const [answer, setAnswer] = useState({});
  useEffect(() => {
    let wanted = true;
    ask().then(
      (data) => wanted && setAnswer({ data }),
      (error) => wanted && setAnswer((before) => ({ data: before.data, error })),
    );
    return () => (wanted = false);
  }, needs);
  return answer;
}

/** What is marked with this takes the focus when it appears. */
export function useFocus() {
  const place = useRef();
  useEffect(() => place.current.focus({ preventScroll: true }), []);
  return place;
}

/** The heading of a view. It is given the focus when the view is opened, so that a screen reader says where one is. */
export function Heading({ children, note }) {
  const place = useFocus();
  return html`<div class="heading"><h1 tabindex="-1" ref=${place}>${children}</h1>${note && html`<p>${note}</p>`}</div>`;
}

/** What went wrong, said aloud. */
export const Problem = ({ error }) => error && html`<p class="problem" role="alert">${error.message ?? String(error)}</p>`;

/** Text of any length, which can be scrolled with the keyboard. */
export const Text = ({ label, children }) => html`<pre class="text" tabindex="0" role="region" aria-label=${label}>${children}</pre>`;

/** Terms and what they come to; those without are left out. */
export const Facts = ({ facts }) => html`<dl class="facts">
  ${facts.filter(([, told]) => told != null && told !== "" && told !== false).map(
    ([term, told]) => html`<div key=${term}><dt>${term}</dt><dd>${told}</dd></div>`,
  )}
</dl>`;

// The window of a model as a stacked bar: what fills it, and where Spillway steps in.

/** Parts of the bar from left to right, and how they are called. */
export const PARTS = [
  ["system", "system prompt"],
  ["tools", "tools"],
  ["summary", "summary"],
  ["recalled", "recalled"],
  ["tail", "messages"],
  ["answer", "answer"],
];

const WIDTH = 1000;
const HEIGHT = 24;

/** How many tokens each part has; the whole prompt as messages where more is not known. */
function amounts(row) {
  const bar = row.bar ?? {};
  if (bar.tail != null) return PARTS.map(([name, label]) => ({ name, label, tokens: bar[name] ?? 0 }));
  return [
    { name: "tail", label: "prompt", tokens: row.prompt ?? 0 },
    { name: "answer", label: "answer", tokens: row.answer ?? 0 },
  ];
}

/** The same in words. */
function described(row, parts) {
  const used = parts.reduce((sum, { tokens }) => sum + tokens, 0);
  const there = parts.filter(({ tokens }) => tokens).map(({ label, tokens }) => `${label} ${number(tokens)}`);
  const room = row.window ? ` of ${number(row.window)} tokens, ${percent(used / row.window)} full` : " tokens, window unknown";
  return `${number(used)}${room}: ${there.join(", ") || "empty"}`;
}

const Mark = ({ at, scale, kind, label }) =>
  at != null && html`<line class=${`mark ${kind}`} x1=${at * scale} x2=${at * scale} y1="0" y2=${HEIGHT}><title>${label}</title></line>`;

export function Bar({ row }) {
  const parts = amounts(row);
  const used = parts.reduce((sum, { tokens }) => sum + tokens, 0);
  const whole = Math.max(row.window ?? used, used, 1);
  const scale = WIDTH / whole;
  let x = 0;
  const drawn = parts.map((part) => {
    const at = x;
    x += part.tokens * scale;
    return { ...part, at, width: part.tokens * scale };
  });
  return html`<svg class="bar" role="img" aria-label=${described(row, parts)} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none">
    <rect class="room" width=${WIDTH} height=${HEIGHT} />
    ${drawn.map(
      ({ name, label, tokens, at, width }) =>
        html`<rect key=${name} class=${`part ${name}`} x=${at} width=${width} height=${HEIGHT}><title>${label}: ${number(tokens)} tokens</title></rect>`,
    )}
    ${row.window && used > row.window && html`<rect class="part over" x=${row.window * scale} width=${WIDTH - row.window * scale} height=${HEIGHT}><title>${number(used - row.window)} tokens too many</title></rect>`}
    <${Mark} at=${row.trigger} scale=${scale} kind="trigger" label="above this, a request is compacted before it is sent" />
    <${Mark} at=${row.pause} scale=${scale} kind="pause" label="here a running answer is paused and compacted" />
  </svg>`;
}

/** What the colours stand for; with the tokens of a row, if one is given. */
export function Legend({ row }) {
  const told = (name) => (row?.bar?.[name] == null ? "" : ` ${number(row.bar[name])}`);
  const there = PARTS.filter(([name]) => !row || (row.bar ? row.bar[name] > 0 : name === "tail"));
  return html`<ul class="legend" aria-label="What the bar shows">
    ${there.map(([name, label]) => html`<li key=${name}><span class=${`swatch ${name}`}></span>${label}${told(name)}</li>`)}
    ${row?.fill > 1 ? html`<li><span class="swatch over"></span>does not fit</li>` : html`<li><span class="swatch room"></span>room left${told("room")}</li>`}
    <li><span class="swatch line trigger"></span>${share(row, "trigger", "80 %")}: compacts</li>
    <li><span class="swatch line pause"></span>${share(row, "pause", "90 %")}: pauses</li>
  </ul>`;
}

const share = (row, name, usual) => (row?.window && row[name] ? percent(row[name] / row.window) : usual);

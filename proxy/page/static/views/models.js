// What Spillway knows of each model, and where from.
import { act, get } from "../api.js";
import { announce, feed, useFeed } from "../feed.js";
import { Facts, Heading, Problem, html, number, percent, plural, seconds, useAsked, useState } from "../lib.js";

const TRUST = {
  configured: "set by you",
  loaded: "told of the loaded model",
  learned: "learned from what happened",
  listed: "told in a list",
  trained: "what it was trained for",
  fallback: "assumed",
};
const LESSONS = [
  ["window", "window", (value) => `${number(value)} tokens`],
  ["tools", "tools", (value) => (value ? "takes tools" : "refused tools")],
  ["continuations", "refused_continuations", (value) => `refused to go on by ${value.join(", ")}`],
];

const from = ({ origin, trust }) => html` <span class="made">${origin}; ${TRUST[trust] ?? trust}</span>`;
const fact = (known, written) => known && html`${written(known.value)}${from(known)}`;
const tokens = (value) => `${number(value)} tokens`;
const yes = (value) => (value ? "yes" : "no");

function Lessons({ backend, model, told, onForgot }) {
  const [failed, setFailed] = useState(null);
  const learned = LESSONS.filter(([, field]) => told[field]?.trust === "learned" || (field === "refused_continuations" && told[field]));
  if (!learned.length) return html`<p class="made">Nothing was learned that the backend does not tell itself.</p>`;
  const forget = async (lesson) => {
    setFailed(null);
    try {
      await act("DELETE", `lessons?${new URLSearchParams({ backend, model, lesson })}`);
      announce(`${model}: forgotten`);
      onForgot();
    } catch (problem) {
      setFailed(problem);
    }
  };
  return html`<ul class="lessons">${learned.map(([lesson, field, written]) => html`<li key=${lesson}>
      <span>${written(told[field].value)} <span class="made">${told[field].origin}${told[field].expires_in != null && `; for ${seconds(told[field].expires_in)} more`}</span></span>
      ${feed.session.role !== "key" && html`<button class="quiet" aria-label=${`Forget: ${model}, ${lesson}`} onClick=${() => forget(lesson)}>Forget</button>`}
    </li>`)}</ul><${Problem} error=${failed} />`;
}

const counted = ({ source, vocabulary, samples, p95_error: error }) =>
  [source, vocabulary && `vocabulary ${vocabulary}`, samples != null && plural(samples, "sample"), error != null && `95 of 100 prompts within ${percent(error)}`].filter(Boolean).join(", ");

function Model({ backend, model, told, onForgot }) {
  const chosen = told.effective ?? {};
  const id = `model-${backend.name}-${model}`;
  return html`<article class="model" aria-labelledby=${id}>
    <h3 id=${id}>${model}</h3>
    ${chosen.advice && html`<p class="problem">Its window is not known, so it is not managed: ${chosen.advice}</p>`}
    <${Facts} facts=${[
      ["window", fact(told.window, tokens)],
      ["trained for", fact(told.trained_window, tokens)],
      ["longest answer", fact(told.max_output, tokens)],
      ["compacts at", told.window && `${percent(chosen.trigger)}, down to ${percent(chosen.target)}; pauses at ${percent(chosen.pause)}`],
      ["policy", chosen.policy],
      ["tools", fact(told.tools, (value) => (value ? "native" : "emulated")) ?? "native, until they are refused"],
      ["images", fact(told.vision, yes)],
      ["tokenizer", fact(told.tokenizer, String)],
      ["counting", told.counting && counted(told.counting)],
      ["goes on by", fact(told.continuation, (value) => String(value).replaceAll("_", " "))],
      ["refused ways to go on", fact(told.refused_continuations, (value) => value.join(", "))],
      ["emulated calls", Object.entries(told.emulated_calls ?? {}).map(([what, count]) => `${what} ${typeof count === "number" ? number(count) : JSON.stringify(count)}`).join(", ")],
    ]} />
    <h4>Learned</h4>
    <${Lessons} backend=${backend.name} model=${model} told=${told} onForgot=${onForgot} />
  </article>`;
}

export function Models() {
  const { learned } = useFeed();
  const [forgot, setForgot] = useState(0);
  const { data, error } = useAsked(() => get("models"), [learned, forgot]);
  return html`<${Heading} note="Every figure with where it comes from, and how far it is trusted.">Models<//>
    <${Problem} error=${error} />
    ${data?.backends.map((backend) => html`<section key=${backend.name} aria-label=${backend.name}>
      <h2>${backend.name} <span class="made">${backend.kind} at ${backend.url}</span></h2>
      ${!Object.keys(backend.models ?? {}).length && html`<p class="empty">It lists no models, or does not answer now.</p>`}
      ${Object.entries(backend.models ?? {}).map(([model, told]) => html`<${Model} key=${model} backend=${backend} model=${model} told=${told} onForgot=${() => setForgot(forgot + 1)} />`)}
    </section>`)}`;
}

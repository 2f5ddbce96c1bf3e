// What Spillway knows of each model, and from where.
import { act, get } from "../api.js";
import { announce, feed, useOutcomes } from "../feed.js";
import { Facts, Heading, Problem, html, number, percent, plural, seconds, useAsked, useState } from "../lib.js";

const TRUST = {
  configured: "set by you",
  loaded: "reported for the loaded model",
  learned: "learned from an answer or an error",
  listed: "from the backend's list",
  trained: "what the model was trained for",
  fallback: "assumed",
};
const LESSONS = [
  ["window", "window", (value) => `${number(value)} tokens`],
  ["tools", "tools", (value) => (value ? "takes tools" : "refused tools")],
  ["streaming", "streams", (value) => (value ? "streams" : "refused to stream")],
  ["roles", "template_rules", (value) => `chat template refuses roles: ${value.join(", ")}`],
  ["continuations", "refused_continuations", (value) => `cannot resume by ${value.join(", ")}`],
];

const from = ({ origin, trust }) => html` <span class="made">${origin}; ${TRUST[trust] ?? trust}</span>`;
const fact = (known, written) => known && html`${written(known.value)}${from(known)}`;
const tokens = (value) => `${number(value)} tokens`;
const yes = (value) => (value ? "yes" : "no");

function Lessons({ backend, model, told, onForgot }) {
  const [failed, setFailed] = useState(null);
  const learned = LESSONS.filter(([, field]) => told[field]?.trust === "learned" || (field === "refused_continuations" && told[field]));
  if (!learned.length) return html`<p class="made">Nothing learned: the backend reports what it knows.</p>`;
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

const FATES = ["called", "repaired", "malformed", "retried", "lost"];

/** Tool calls read from text by form, and those that could not be made, by reason. */
function Calls({ emulated, malformed }) {
  const reasons = Object.entries(malformed);
  const forms = Object.entries(emulated);
  if (!reasons.length && !forms.length) return null;
  return html`<h4>Tool calls</h4>
    ${forms.length > 0 && html`<div class="wide" tabindex="0" role="region" aria-label="Tool calls written as text"><table>
      <thead><tr><th scope="col">written as</th>${FATES.map((fate) => html`<th scope="col" key=${fate}>${fate}</th>`)}</tr></thead>
      <tbody>${forms.map(([form, counts]) => html`<tr key=${form}><td>${form}</td>${FATES.map((fate) => html`<td class="figure" key=${fate}>${number(counts[fate] ?? 0)}</td>`)}</tr>`)}</tbody>
    </table></div>`}
    ${reasons.length > 0 && html`<p>Malformed in the requests in memory: ${reasons.map(([reason, count]) => `${number(count)} ${reason.replaceAll("_", " ")}`).join(", ")}.</p>`}`;
}

/** How many malformed calls the kept requests had, by backend and model, then by reason. */
function malformedOf(outcomes) {
  const counts = {};
  for (const { backend, model, malformed_calls: calls } of outcomes) {
    for (const { reason } of calls ?? []) {
      const of = (counts[`${backend}/${model}`] ??= {});
      of[reason] = (of[reason] ?? 0) + 1;
    }
  }
  return counts;
}

function Model({ backend, model, told, malformed = {}, onForgot }) {
  const chosen = told.effective ?? {};
  const id = `model-${backend.name}-${model}`;
  return html`<article class="model" aria-labelledby=${id}>
    <h3 id=${id}>${model}</h3>
    ${chosen.advice && html`<p class="problem">Not managed, because its window is unknown: ${chosen.advice}</p>`}
    <${Facts} facts=${[
      ["window", fact(told.window, tokens)],
      ["trained with", fact(told.trained_window, tokens)],
      ["longest answer", fact(told.max_output, tokens)],
      ["compacts at", told.window && `${percent(chosen.trigger)}, down to ${percent(chosen.target)}; pauses at ${percent(chosen.pause)}`],
      ["policy", chosen.policy],
      ["tools", fact(told.tools, (value) => (value ? "native" : "emulated")) ?? "native until the backend refuses them"],
      ["images", fact(told.vision, yes)],
      ["tokenizer", fact(told.tokenizer, String)],
      ["counting", told.counting && counted(told.counting)],
      ["resumes by", fact(told.continuation, (value) => String(value).replaceAll("_", " "))],
      ["refused ways to resume", fact(told.refused_continuations, (value) => value.join(", "))],
    ]} />
    <${Calls} emulated=${told.emulated_calls ?? {}} malformed=${malformed} />
    <h4>Learned</h4>
    <${Lessons} backend=${backend.name} model=${model} told=${told} onForgot=${onForgot} />
  </article>`;
}

function SummaryModel({ chosen, names, onChosen }) {
  const [failed, setFailed] = useState(null);
  const choose = async ({ target }) => {
    setFailed(null);
    try {
      await act("PUT", `summary_model?${new URLSearchParams({ model: target.value })}`);
      announce(target.value ? `${target.value} summarises from now on` : "Summaries as configured");
    } catch (problem) {
      setFailed(problem);
    }
    onChosen();
  };
  return html`<p><label>Summaries by <select value=${chosen ?? ""} onChange=${choose}>
      <option value="">as configured</option>
      ${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select></label> <span class="made">for all clients, until Spillway stops</span></p><${Problem} error=${failed} />`;
}

export function Models() {
  const [times, setTimes] = useState(0);
  const refresh = () => setTimes((before) => before + 1);
  const malformed = malformedOf(useOutcomes());
  const { data, error } = useAsked(() => get("models"), [times]);
  return html`<${Heading} note="What is known of each model, and from where.">Models<//>
    <p><button class="quiet" onClick=${refresh}>Refresh</button></p>
    <${Problem} error=${error} />
    ${data && feed.session.role !== "key" && html`<${SummaryModel} chosen=${data.summary_model} names=${data.names} onChosen=${refresh} />`}
    ${data?.backends.map((backend) => html`<section key=${backend.name} aria-label=${backend.name}>
      <h2>${backend.name} <span class="made">${backend.kind} at ${backend.url}</span></h2>
      ${!Object.keys(backend.models ?? {}).length && html`<p class="empty">No answer, or no models: spillway check says why.</p>`}
      ${Object.entries(backend.models ?? {}).map(([model, told]) => html`<${Model} key=${model} backend=${backend} model=${model} told=${told} malformed=${malformed[`${backend.name}/${model}`]} onForgot=${refresh} />`)}
    </section>`)}`;
}

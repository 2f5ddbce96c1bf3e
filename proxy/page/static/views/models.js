// What Spillway knows of each model, and where from.
import { act, get } from "../api.js";
import { announce, feed, useFeed } from "../feed.js";
import { Facts, Heading, Problem, clock, html, number, percent, plural, seconds, useAsked, useEffect, useRef, useState } from "../lib.js";

let library = null;

/** The plots' library, fetched when the first one is shown. */
const loaded = () =>
  (library ??= new Promise((done, fail) => {
    const script = document.createElement("script");
    script.src = "/ui/vendor/uplot.js";
    script.onload = () => done(window.uPlot);
    script.onerror = () => fail(new Error("The plot can't be drawn."));
    document.head.append(script);
  }));

const HEIGHT = 180;

function Plot({ points, label }) {
  const place = useRef();
  useEffect(() => {
    let plot = null;
    let wanted = true;
    const width = () => Math.max(place.current.clientWidth, 200);
    loaded().then((Plotted) => {
      if (!wanted) return;
      const colours = getComputedStyle(place.current);
      const axis = { stroke: colours.color, grid: { stroke: colours.getPropertyValue("border-top-color") }, ticks: { show: false } };
      const line = colours.getPropertyValue("outline-color");
      const values = (_, shown) => shown.map(percent);
      plot = new Plotted(
        {
          width: width(),
          height: HEIGHT,
          legend: { show: false },
          cursor: { show: false },
          scales: { y: { range: (_, low, high) => [Math.min(low, -0.05), Math.max(high, 0.05)] } },
          series: [{}, { stroke: line, width: 2, points: { show: true, size: 5, fill: line } }],
          axes: [{ ...axis, space: 90, values: (_, shown) => shown.map(clock) }, { ...axis, values, size: 56 }],
        },
        [points.map(({ at }) => at), points.map(({ error }) => error)],
        place.current,
      );
    }, () => {});
    const sized = new ResizeObserver(() => plot?.setSize({ width: width(), height: HEIGHT }));
    sized.observe(place.current);
    return () => {
      wanted = false;
      sized.disconnect();
      plot?.destroy();
    };
  }, [points]);
  return html`<div class="plot" role="img" aria-label=${label} ref=${place}></div>`;
}

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

function Calibration({ backend, model, samples }) {
  const { data, error } = useAsked(() => get("calibration", { backend, model }), [backend, model, samples]);
  const points = data?.points ?? [];
  if (!points.length) return html`<${Problem} error=${error} /><p class="made">No prompts to compare yet.</p>`;
  const last = points.at(-1);
  return html`<${Plot} points=${points} label=${`Error of the count in ${plural(points.length, "prompt")}, last ${percent(last.error)}`} />
    <details><summary>The same as a table</summary><div class="wide"><table>
      <thead><tr><th>when</th><th>estimated</th><th>reported</th><th>error</th></tr></thead>
      <tbody>${points.slice(-50).map((point) => html`<tr key=${point.at}><td>${clock(point.at)}</td><td>${number(point.estimated)}</td><td>${number(point.reported)}</td><td>${(point.error * 100).toFixed(1)} %</td></tr>`)}</tbody>
    </table></div></details>`;
}

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
      ["parallel calls", fact(told.parallel_tool_calls, yes)],
      ["images", fact(told.vision, yes)],
      ["tokenizer", fact(told.tokenizer, String)],
      ["counting", told.counting && counted(told.counting)],
      ["goes on by", fact(told.continuation, (value) => String(value).replaceAll("_", " "))],
      ["refused ways to go on", fact(told.refused_continuations, (value) => value.join(", "))],
      ["at the same time", fact(told.parallel, (value) => plural(value, "answer"))],
      ["emulated calls", Object.entries(told.emulated_calls ?? {}).map(([what, count]) => `${what} ${typeof count === "number" ? number(count) : JSON.stringify(count)}`).join(", ")],
    ]} />
    <h4>Learned</h4>
    <${Lessons} backend=${backend.name} model=${model} told=${told} onForgot=${onForgot} />
    <h4>Error of the count over time</h4>
    <${Calibration} backend=${backend.name} model=${model} samples=${told.counting?.samples} />
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

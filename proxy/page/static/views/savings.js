// What Spillway saved, and what it cost.
import { get } from "../api.js";
import { useFeed } from "../feed.js";
import { Facts, Heading, Problem, html, moment, number, plural, seconds, useAsked } from "../lib.js";

const HOW = [
  "Counted over the requests that are still in memory.",
  "Without Spillway: the prompt with all that was taken out put back, at most the window, because no backend takes more. A prompt that was not changed saves nothing.",
  "Saved: that, less the tokens sent instead, less the tokens that summaries read and wrote. Each resume of a paused answer counts again.",
  "Rescued: prompts that would not have fitted the window, and answers that continued past a full one.",
];

const Tile = ({ figure, unit, of }) => html`<li class=${`tile ${figure < 0 ? "loss" : ""}`}><b>${unit === "s" ? seconds(figure) : number(figure)}</b><span>${of}</span></li>`;

function Against({ tokens }) {
  const most = Math.max(tokens.without, tokens.sent + tokens.spent, 1);
  const bar = (parts, label) => {
    let x = 0;
    return html`<svg class="bar" role="img" aria-label=${label} viewBox="0 0 1000 24" preserveAspectRatio="none">
      <rect class="room" width="1000" height="24" />
      ${parts.map(([name, value]) => {
        const at = x;
        x += (value / most) * 1000;
        return html`<rect key=${name} class=${`part ${name}`} x=${at} width=${(value / most) * 1000} height="24" />`;
      })}
    </svg>`;
  };
  return html`<div class="against">
    <span>without</span>${bar([["before", tokens.without]], `Without Spillway ${number(tokens.without)} tokens`)}<span>${number(tokens.without)}</span>
    <span>with</span>${bar([["tail", tokens.sent], ["summary", tokens.spent]], `With Spillway ${number(tokens.sent)} tokens sent and ${number(tokens.spent)} for summaries`)}<span>${number(tokens.sent + tokens.spent)}</span>
  </div>`;
}

export function Savings() {
  const { told } = useFeed();
  const { data, error } = useAsked(() => get("savings"), [told]);
  if (!data) return html`<${Heading}>Savings<//><${Problem} error=${error} />`;
  const { tokens, seconds: took, rescued } = data;
  return html`<${Heading} note=${`${plural(data.requests, "request")}${data.since ? ` since ${moment(data.since)}` : ""}.`}>Savings<//>
    <ul class="tiles">
      <${Tile} figure=${tokens.not_sent} of="tokens saved" />
      <${Tile} figure=${took.waited} unit="s" of="spent waiting for compactions" />
      <${Tile} figure=${rescued.prompts} of=${rescued.prompts === 1 ? "prompt rescued" : "prompts rescued"} />
      <${Tile} figure=${rescued.answers} of=${`${rescued.answers === 1 ? "answer" : "answers"} continued past a full window`} />
    </ul>
    <section aria-labelledby="against"><h2 id="against">Tokens to the model</h2><${Against} tokens=${tokens} /></section>
    <section aria-labelledby="parts"><h2 id="parts">Figures</h2>
      <${Facts} facts=${[
        ["without Spillway", tokens.without != null && `${number(tokens.without)} tokens`],
        ["sent", `${number(tokens.sent)} tokens`],
        ["spent on summaries", `${number(tokens.spent)} tokens`],
        ["waited for compactions", seconds(took.waited)],
        ["compactions ahead of a request", seconds(took.ahead)],
      ]} /></section>
    <section aria-labelledby="how"><h2 id="how">How this is computed</h2><ul>${HOW.map((line) => html`<li key=${line}>${line}</li>`)}</ul></section>`;
}

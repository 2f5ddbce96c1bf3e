// Every request and what became of it.
import { get } from "../api.js";
import { useFeed } from "../feed.js";
import { Heading, Problem, clock, fill, html, number, percent, seconds, to, useAsked, useMemo, useState } from "../lib.js";
import { done } from "./conversations.js";

const ANY = "";
const CHOICES = {
  status: ["200", "4xx", "5xx", "499"],
  action: ["forwarded", "pruned", "compacted", "trimmed", "compacting", "passed"],
  dialect: ["chat", "responses", "messages", "ollama", "completions"],
};

const Choice = ({ name, values, chosen, onChoose }) => html`<label>${name}
  <select value=${chosen[name] ?? ANY} onChange=${(event) => onChoose({ ...chosen, [name]: event.target.value })}>
    <option value=${ANY}>all</option>${values.map((value) => html`<option key=${value} value=${value}>${value}</option>`)}
  </select></label>`;

const Flag = ({ name, label, chosen, onChoose }) => html`<label class="check">
  <input type="checkbox" checked=${!!chosen[name]} onChange=${(event) => onChoose({ ...chosen, [name]: event.target.checked ? "true" : "" })} /> ${label}</label>`;

const Line = ({ outcome }) => html`<tr>
  <td><a href=${to("r", outcome.id)} aria-label=${`Open the request of ${clock(outcome.at)}`}>${clock(outcome.at)}</a></td>
  <td class=${outcome.status >= 400 ? "bad" : ""}>${outcome.running ? "running" : outcome.status}${outcome.error && ` ${outcome.error}`}</td>
  <td>${outcome.model}</td>
  <td>${done(outcome).join(", ")}</td>
  <td class="figure">${number(outcome.tokens_before)} → ${number(outcome.tokens_after)}</td>
  <td class="figure">${percent(fill(outcome.tokens_after, outcome.window))}</td>
  <td class="figure">${seconds(outcome.seconds)}</td>
</tr>`;

export function Log() {
  const { told, rows, outcomes } = useFeed();
  const [chosen, setChosen] = useState({});
  const [older, setOlder] = useState({ of: chosen, list: [], next: null });
  const [failed, setFailed] = useState(null);
  const { data, error } = useAsked(() => get("outcomes", chosen), [chosen, told]);
  const models = useMemo(() => [...new Set([...rows.values(), ...outcomes].map(({ model }) => model))].filter(Boolean).sort(), [told, rows.size]);
  const newest = data?.outcomes ?? [];
  const same = older.of === chosen ? older : { of: chosen, list: [], next: null };
  const seen = new Set(newest.map(({ id }) => id));
  const all = [...newest, ...same.list.filter(({ id }) => !seen.has(id))];
  const next = same.list.length ? same.next : data?.next;
  const more = async () => {
    setFailed(null);
    try {
      const page = await get("outcomes", { ...chosen, before: next });
      setOlder({ of: chosen, list: [...all, ...page.outcomes], next: page.next });
    } catch (problem) {
      setFailed(problem);
    }
  };
  return html`<${Heading} note="What became of each request.">Log<//>
    <div class="filters" role="group" aria-label="Show only">
      <${Choice} name="model" values=${models} chosen=${chosen} onChoose=${setChosen} />
      ${Object.entries(CHOICES).map(([name, values]) => html`<${Choice} key=${name} name=${name} values=${values} chosen=${chosen} onChoose=${setChosen} />`)}
      <${Flag} name="error" label="errors" chosen=${chosen} onChoose=${setChosen} />
      <${Flag} name="running" label="running" chosen=${chosen} onChoose=${setChosen} />
    </div>
    <${Problem} error=${error ?? failed} />
    ${all.length === 0 && data && html`<p class="empty">No request is like that.</p>`}
    ${all.length > 0 && html`<div class="wide" tabindex="0" role="region" aria-label="Requests"><table>
      <thead><tr><th scope="col">when</th><th scope="col">status</th><th scope="col">model</th><th scope="col">what was done</th><th scope="col">prompt tokens</th><th scope="col">fill</th><th scope="col">took</th></tr></thead>
      <tbody>${all.map((outcome) => html`<${Line} key=${outcome.id} outcome=${outcome} />`)}</tbody>
    </table></div>`}
    ${next && html`<button onClick=${more}>Show older ones</button>`}`;
}

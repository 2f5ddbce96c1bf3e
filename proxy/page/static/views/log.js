// Every request: when, whose, and what was done.
import { get } from "../api.js";
import { useFeed } from "../feed.js";
import { Heading, Problem, clock, fill, html, percent, promptOf, seconds, titleOf, to, troubled, useAsked, useMemo, useState } from "../lib.js";
import { sentence } from "./timeline.js";

const ANY = "";
const CHOICES = {
  status: ["200", "4xx", "5xx", "499"],
  action: ["forwarded", "continued", "moved", "shaped", "pruned", "compacted", "trimmed", "read", "compacting", "observed", "passed"],
  dialect: ["chat", "responses", "messages", "ollama", "completions"],
};

const Choice = ({ name, values, chosen, onChoose }) => html`<label>${name}
  <select value=${chosen[name] ?? ANY} onChange=${(event) => onChoose({ ...chosen, [name]: event.target.value })}>
    <option value=${ANY}>all</option>${values.map((value) => html`<option key=${value} value=${value}>${value}</option>`)}
  </select></label>`;

const Flag = ({ name, label, chosen, onChoose }) => html`<label class="check">
  <input type="checkbox" checked=${!!chosen[name]} onChange=${(event) => onChoose({ ...chosen, [name]: event.target.checked ? "true" : "" })} /> ${label}</label>`;

/** The client of a request, and what its conversation is called, as far as the feed has it. */
function whose(outcome, rows) {
  const row = rows.get(outcome.conversation);
  return { client: row?.client ?? "", title: row ? titleOf(row) : "" };
}

const Line = ({ outcome, client, title }) => html`<tr class=${troubled(outcome) ? "trouble" : ""}>
  <td><a href=${to("r", outcome.id)} aria-label=${`Open the request of ${clock(outcome.at)}`}>${clock(outcome.at)}</a></td>
  <td>${outcome.running ? "running" : outcome.status}</td>
  <td>${outcome.conversation && title && html`<a class="clip" href=${to("c", outcome.conversation)}>${title}</a>`} <span class="made">${client}</span></td>
  <td>${outcome.model}</td>
  <td>${sentence(outcome)}</td>
  <td class="figure">${promptOf(outcome)}</td>
  <td class="figure">${percent(fill(outcome.tokens_after, outcome.window))}</td>
  <td class="figure">${seconds(outcome.seconds)}</td>
</tr>`;

export function Log() {
  const { told, rows, outcomes } = useFeed();
  const [chosen, setChosen] = useState({});
  const [older, setOlder] = useState({ of: chosen, list: [], next: null });
  const [failed, setFailed] = useState(null);
  const [search, setSearch] = useState("");
  const { data, error } = useAsked(() => get("outcomes", chosen), [chosen, told]);
  const models = useMemo(() => [...new Set([...rows.values(), ...outcomes].map(({ model }) => model))].filter(Boolean).sort(), [told, rows.size]);
  const newest = data?.outcomes ?? [];
  const same = older.of === chosen ? older : { of: chosen, list: [], next: null };
  const seen = new Set(newest.map(({ id }) => id));
  const all = [...newest, ...same.list.filter(({ id }) => !seen.has(id))];
  const lines = all.map((outcome) => ({ outcome, ...whose(outcome, rows) })).filter(({ outcome, client, title }) =>
    [outcome.id, outcome.model, outcome.backend, client, title, sentence(outcome)].join(" ").toLowerCase().includes(search.trim().toLowerCase()),
  );
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
  return html`<${Heading} note="Every request, newest first.">Log<//>
    <div class="filters" role="group" aria-label="Filters">
      <label>search <input type="search" placeholder="title, client, model, id" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label>
      <${Choice} name="model" values=${models} chosen=${chosen} onChoose=${setChosen} />
      ${Object.entries(CHOICES).map(([name, values]) => html`<${Choice} key=${name} name=${name} values=${values} chosen=${chosen} onChoose=${setChosen} />`)}
      <${Flag} name="error" label="errors" chosen=${chosen} onChoose=${setChosen} />
      <${Flag} name="running" label="running" chosen=${chosen} onChoose=${setChosen} />
    </div>
    <${Problem} error=${error ?? failed} />
    ${lines.length === 0 && data && html`<p class="empty">No request matches.</p>`}
    ${lines.length > 0 && html`<div class="wide log" tabindex="0" role="region" aria-label="Requests"><table>
      <thead><tr><th scope="col">when</th><th scope="col">status</th><th scope="col">conversation</th><th scope="col">model</th><th scope="col">what was done</th><th scope="col">prompt tokens</th><th scope="col">fill</th><th scope="col">took</th></tr></thead>
      <tbody>${lines.map((line) => html`<${Line} key=${line.outcome.id} ...${line} />`)}</tbody>
    </table></div>`}
    ${next && html`<button onClick=${more}>Show older requests</button>`}`;
}

// What is remembered of the users of a key, to read and to delete.
import { act, get } from "../api.js";
import { announce } from "../feed.js";
import { Heading, Problem, html, moment, plural, useAsked, useState } from "../lib.js";

export function Memory() {
  const [user, setUser] = useState("");
  const [times, setTimes] = useState(0);
  const [failed, setFailed] = useState(null);
  const { data, error } = useAsked(() => get("memory", { user }), [user, times]);
  const forget = async (statement) => {
    setFailed(null);
    try {
      const { deleted } = await act("DELETE", `memory?${new URLSearchParams({ user, statement })}`);
      announce(`${plural(deleted, "statement")} deleted`);
      setTimes((before) => before + 1);
    } catch (problem) {
      setFailed(problem);
    }
  };
  const statements = data?.statements ?? [];
  return html`<${Heading} note="What users said of themselves, for their other conversations.">Memory<//>
    <p><label>User <input value=${user} placeholder="the key's holder" onChange=${({ target }) => setUser(target.value.trim())} /></label>
      <span class="made">as the client names it, such as Open WebUI's id of a user</span></p>
    <${Problem} error=${error ?? failed ?? (data?.statements === null && "The store does not answer at the moment.")} />
    ${data?.statements?.length === 0 && html`<p class="empty">Nothing is remembered.</p>`}
    <ul class="lessons">${statements.map(({ id, text, said_at: at }) => html`<li key=${id}>
      <span>${text} <span class="made">${moment(at)}</span></span>
      <button class="quiet" aria-label=${`Delete: ${text}`} onClick=${() => forget(id)}>Delete</button>
    </li>`)}</ul>
    ${statements.length > 1 && html`<p><button class="quiet" onClick=${() => forget("")}>Delete all</button></p>`}`;
}

// The summary that stands for the beginning of a conversation, and what may be done about it.
import { act, get } from "../api.js";
import { announce, feed } from "../feed.js";
import { Facts, Problem, Text, clock, html, number, plural, useAsked, useFocus, useState } from "../lib.js";

const VERDICTS = {
  kept: "fit as it was",
  mended: "fit once code had mended it",
  failed: "not used: there was no answer",
  empty: "not used: it said nothing",
  refusal: "not used: the model refused",
  loop: "not used: it went round in circles",
  cut: "not used: it was cut off",
  language: "not used: it was in another language",
  copy: "not used: it was a copy",
  gaps: "not used: too much was missing",
};
const BY = { written: "written by the model", extract: "an extract made by code", edited: "edited here" };

/** A button, and a question before it is done. */
function Sure({ label, question, busy, onDo }) {
  const [open, setOpen] = useState(false);
  if (open) return html`<${Question} ...${{ label, question, busy, onDo }} onLeave=${() => setOpen(false)} />`;
  return html`<button disabled=${busy} onClick=${() => setOpen(true)}>${label}</button>`;
}

function Question({ label, question, busy, onDo, onLeave }) {
  const leave = useFocus();
  return html`<span class="sure" role="group" aria-label=${label}>
    <span>${question}</span>
    <button class="stop" disabled=${busy} onClick=${onDo}>${label}</button>
    <button class="quiet" ref=${leave} onClick=${onLeave}>Leave it</button>
  </span>`;
}

function Editor({ block, busy, onSave, onLeave }) {
  const [text, setText] = useState(block.text);
  const place = useFocus();
  const save = (event) => {
    event.preventDefault();
    onSave(text);
  };
  return html`<form class="editor" onSubmit=${save}>
    <label>The summary, as the model shall read it
      <textarea rows="12" ref=${place} value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
    </label>
    <div class="actions"><button disabled=${busy || !text.trim()}>Save</button><button type="button" class="quiet" onClick=${onLeave}>Leave it</button></div>
  </form>`;
}

function Block({ block, number: place, several, children }) {
  return html`<article class="block">
    ${several && html`<h3>Part ${place}</h3>`}
    <${Text} label=${several ? `Text of part ${place}` : "Text of the summary"}>${block.text}<//>
    ${block.appended && html`<details><summary>Names and figures that code added</summary><${Text} label="Names and figures">${block.appended}<//></details>`}
    ${block.rules?.length > 0 && html`<h3>Rules of the user, word for word</h3><ul>${block.rules.map((rule) => html`<li key=${rule}>${rule}</li>`)}</ul>`}
    <p class="made">${BY[block.by] ?? block.by} · ${number(block.tokens)} tokens</p>
    ${children}
  </article>`;
}

function Rewrite({ busy, onDo }) {
  const [wish, setWish] = useState("");
  const send = (event) => {
    event.preventDefault();
    onDo(wish.trim());
  };
  return html`<form class="rewrite" onSubmit=${send}>
    <label>What to take care of <input value=${wish} placeholder="may be left empty" onInput=${(event) => setWish(event.target.value)} /></label>
    <button disabled=${busy}>Write it anew</button>
  </form>`;
}

export function Summary({ row }) {
  const [edited, setEdited] = useState(null);
  const [busy, setBusy] = useState("");
  const [failed, setFailed] = useState(null);
  const [changes, setChanges] = useState(0);
  const [held, setHeld] = useState(null);
  const path = `conversations/${encodeURIComponent(row.id)}/summary`;
  const point = row.checkpoint;
  const { data, error } = useAsked(async () => (point?.summary ? get(path) : null), [row.id, point?.created_at, point?.summary, point?.covered, changes]);

  if (feed.session?.content === false) {
    return html`<section aria-labelledby="summary"><h2 id="summary">Summary</h2><p>What was said is not shown here.</p></section>`;
  }
  const change = (what, doing) => async (...given) => {
    setBusy(what);
    setFailed(null);
    try {
      await doing(...given);
      setEdited(null);
      setHeld(`${what}. It holds from the next prompt on.`);
      announce(`${what}. It holds from the next prompt on.`);
      setChanges(changes + 1);
    } catch (problem) {
      setFailed(problem);
    }
    setBusy("");
  };
  const rewrite = change("The summary was written anew", (instructions) => act("POST", `${path}/rewrite`, instructions ? { instructions } : {}));
  const save = change("The summary was edited", (text) => act("PUT", path, { text, block: edited }));
  const reject = change("The summary was rejected", () => act("DELETE", path));
  const blocks = data?.blocks ?? [];
  return html`<section aria-labelledby="summary">
    <h2 id="summary">Summary</h2>
    <${Problem} error=${error?.code === "no_summary" ? null : error} /><${Problem} error=${failed} />
    ${held && html`<p class="done">${held}</p>`}
    ${busy && html`<p class="made">Working …</p>`}
    ${!data && html`<p class="empty">None stands in its prompt.</p>`}
    ${data && html`<${Facts} facts=${[
      ["stands for", data.checkpoint && plural(data.checkpoint.covered, "message")],
      ["tokens", `${number(data.tokens_before)} → ${number(data.tokens_after)}`],
      ["since", data.checkpoint && clock(data.checkpoint.created_at)],
      ["checkpoints before it", data.earlier],
      ["verification", data.verdicts?.length ? html`<ul class="plain">${data.verdicts.map(({ at, verdict }) => html`<li key=${at}>${clock(at)}: ${VERDICTS[verdict] ?? verdict}</li>`)}</ul>` : "none was asked for since Spillway was started"],
    ]} />`}
    ${blocks.map(
      (block, place) => html`<${Block} key=${block.index} block=${block} number=${place + 1} several=${blocks.length > 1}>
        ${edited === block.index
          ? html`<${Editor} block=${block} busy=${!!busy} onSave=${save} onLeave=${() => setEdited(null)} />`
          : html`<button disabled=${!!busy} onClick=${() => setEdited(block.index)}>Edit</button>`}
      <//>`,
    )}
    ${data && html`<div class="actions">
      ${blocks.length > 0 && html`<${Rewrite} busy=${!!busy} onDo=${rewrite} />`}
      <${Sure} key=${changes} label="Reject" busy=${!!busy} onDo=${reject}
        question=${data.earlier ? "The checkpoint before it will hold instead." : "The whole history will be sent instead, or compacted anew."} />
    </div>`}
  </section>`;
}

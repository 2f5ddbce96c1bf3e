// What happens now: the events of /spillway/live, kept as the views need them.
import { get, live } from "./api.js";
import { stateName, titleOf, useAsked, useEffect, useState } from "./lib.js";

const MOST = 500; // outcomes that are kept
const DRAWN = 80; // milliseconds between two drawings, however much happens
const AGAIN = 3000; // milliseconds until it is tried again

/** `told` counts what happened, for views that then ask again; `link`: `new`, `open` or `lost`. */
export const feed = { link: "new", session: null, rows: new Map(), outcomes: [], told: 0, said: "" };

const listeners = new Set();
let waiting = false;

/** Have the views drawn again, soon and once for many changes. */
export function changed() {
  if (waiting) return;
  waiting = true;
  setTimeout(() => {
    waiting = false;
    for (const listener of listeners) listener({});
  }, DRAWN);
}

/** The feed, and a new drawing whenever it changed. */
export function useFeed() {
  const [, draw] = useState({});
  useEffect(() => {
    listeners.add(draw);
    return () => listeners.delete(draw);
  }, []);
  return feed;
}

/** The newest requests that have ended: those that Spillway still has, asked for once, and those that the feed told of since. */
export function useOutcomes() {
  const { outcomes } = useFeed();
  const { data } = useAsked(() => get("outcomes", { limit: String(MOST) }), []);
  return [...new Map([...(data?.outcomes ?? []), ...outcomes].map((outcome) => [outcome.id, outcome])).values()];
}

/** Say something to those who listen to the page rather than see it. */
export function announce(text) {
  feed.said = text;
  changed();
}

function tell(row, state) {
  if (row.background || state === row.state) return;
  if (state === "compacting" || state === "paused") announce(`${titleOf(row)}: ${stateName(state)}`);
}

function put(row) {
  const before = feed.rows.get(row.id);
  if (before) tell(before, row.state);
  feed.rows.set(row.id, row);
}

const HEARD = {
  snapshot({ session, conversations, outcomes }) {
    feed.session = session;
    feed.rows = new Map(conversations.map((row) => [row.id, row]));
    feed.outcomes = outcomes;
    feed.told += 1;
  },
  conversation: put,
  outcome(outcome) {
    feed.outcomes = [outcome, ...feed.outcomes.filter(({ id }) => id !== outcome.id)].slice(0, MOST);
    feed.told += 1;
  },
  gone: ({ id }) => feed.rows.delete(id),
};

let listening = null;

/** Listen, for as long as one may look. */
export async function open() {
  listening?.abort();
  const opened = (listening = new AbortController());
  try {
    feed.session = await get("session");
    if (feed.session.role == null) feed.link = "new";
    changed();
    if (feed.session.role == null) return;
    for await (const [name, data] of live(opened.signal)) {
      if (opened !== listening) return;
      HEARD[name]?.(data);
      if (name === "snapshot") feed.link = "open";
      changed();
    }
  } catch {}
  if (opened === listening) lost();
}

function lost() {
  if (feed.link === "open") announce("The connection to Spillway is lost.");
  feed.link = "lost";
  changed();
  setTimeout(open, AGAIN);
}

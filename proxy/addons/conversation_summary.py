"""Reading and forgetting a conversation's summary, and exporting or deleting the conversation, by viewers and users."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from proxy.addon import AddOn, Command
from proxy.addons.history import Bodies, Conversation, RequestHistory, RequestRecord, describe
from proxy.addons.pins import owner_of
from proxy.addons.prompt_diff import parsed_body, shown
from proxy.addons.sentence import unfit_summaries
from proxy.compaction.summary import in_words
from proxy.core.errors import Conflict, NotFound, StoreUnavailable, plural
from proxy.core.history.checkpoint import Checkpoint
from proxy.core.history.marks import APPENDED, CLOSE, EXTRACT, OPEN, carried_rules, is_summary
from proxy.core.request import Message, Request
from proxy.job import Job
from proxy.net.tasks import offload_if, spawn
from proxy.pipeline import Pipeline
from proxy.store import Store

_MOST_VERDICTS = 20
_LOST = "conversations"
"""Owner of the documents that say what is stored of conversations no longer in memory."""
_SHOWN, _FORGOTTEN = "In place of the first", "Forgotten: the summary of"
_NONE = "Nothing was summarised yet: the model reads all messages."
_ALONE = "Nothing was forgotten: your client no longer sends the messages that this summary replaces."
"""These and the beginnings before are marks of answers to commands."""
_NO_CHANGES = "The store accepts no changes at the moment: try again later."


class ConversationSummaries(AddOn):
    """Reads and deletes checkpoints of conversations."""

    def __init__(self, history: RequestHistory, store: Store, pipeline: Pipeline) -> None:
        self.history, self.store, self.meter = history, store, pipeline.counting.meter
        self._addons, self._preparer = pipeline.addons, pipeline.preparer
        self.history.lost = self._remember
        self.commands = {
            "/summary": Command(self._show, (_SHOWN, _NONE)),
            "/uncompact": Command(self._uncompact, (_FORGOTTEN, _NONE, _ALONE)),
        }

    async def read(self, conversation: Conversation) -> dict[str, Any]:
        """Describe the checkpoint with which the next prompt will begin.

        Raises:
            NotFound: the conversation has no checkpoint.
        """
        return self._describe(conversation, await self._current(conversation))

    async def forget(self, conversation: Conversation) -> dict[str, Any]:
        """Delete the current checkpoint, go back to the one before it, and describe that.

        Raises:
            NotFound: the conversation has no checkpoint.
            Conflict: a request of the conversation is being served, and would store the checkpoint again.
            StoreUnavailable: the store accepts no changes.
        """
        check_idle(conversation)
        current, newest = await self._current(conversation), conversation.newest
        await self._forget(current, newest.links)
        conversation.checkpoints.pop(current.digest, None)
        previous = await self._find(conversation)
        newest.checkpoint = None if previous is None else describe(previous)
        self.history.changes += 1
        conversation.change = self.history.changes
        return {"rejected": True, "summary": None if previous is None else self._describe(conversation, previous)}

    async def delete(self, conversation: Conversation) -> None:
        """Delete everything stored of a conversation, and forget its requests.

        Raises:
            Conflict, StoreUnavailable: as `forget`.
        """
        check_idle(conversation)
        outcomes = [record.outcome for record in conversation.records]
        links = [*conversation.checkpoints, *(conversation.newest.links if outcomes else ())]
        for scope in conversation.scopes:
            for addon in self._addons.all:
                await addon.forgotten(scope, links, outcomes)
            while (found := await self.store.find(scope, links)) is not None:
                await self._drop(found)
        for name in conversation.responses:
            await self.store.drop_document(conversation.tenant, name)
        for name in (*(link.hex() for link in links), *(each.conversation for each in outcomes)):
            await self.store.drop_document(owner_of(conversation.tenant), name)
        if not outcomes:
            await self.store.drop_document(_LOST, conversation.id)
        if not self.store.healthy:  # documents of add-ons may not have been deleted
            raise StoreUnavailable(_NO_CHANGES)
        self.history.forget(conversation)

    def _remember(self, conversation: Conversation, last: RequestRecord) -> None:
        """Store where a conversation's data is, as memory loses the conversation, so that it can still be deleted."""
        if conversation.checkpoints or conversation.responses or any(last.outcome.each("archived")):
            links = [each.hex() for each in dict.fromkeys([*conversation.checkpoints, *last.links])]
            names = {name: list(getattr(conversation, name)) for name in ("scopes", "responses")}
            place = {"tenant": conversation.tenant, "links": links, **names}
            spawn(self.store.put_document(_LOST, conversation.id, place), name="lost-conversation")

    async def find_lost(self, name: str) -> Conversation | None:
        """Find a conversation that memory lost, with the places of its data but no requests; None if nothing is stored."""
        if name in self.history.conversations or (place := await self.store.document(_LOST, name)) is None:
            return None
        found = Conversation(id=name, tenant=place["tenant"], title="", named=False, first_at=0.0)
        found.scopes, found.responses = set(place["scopes"]), set(place["responses"])
        found.checkpoints = {bytes.fromhex(each): {} for each in place["links"]}
        return found

    async def export(self, conversation: Conversation) -> str:
        """Write a conversation as Markdown: what is sent in place of messages, and all messages as far as memory has them."""
        checkpoint, record = await self._find(conversation), conversation.received()
        bodies = Bodies() if record is None else record.bodies
        received = bodies.received
        body = received.body if isinstance(received, Request) else await parsed_body(received)
        messages = [*(body.get("messages") or ())]
        if bodies.answered:
            messages.append({"role": "assistant", "content": bodies.answered})
        return await offload_if(True, _as_markdown, conversation.title, messages, checkpoint)

    # -- commands

    async def _show(self, job: Job, *_: object) -> str:
        found = job.prompt.checkpoint
        return f"📄 {_NONE}" if found is None else f"📄 {await offload_if(True, _in_place, found)}"

    async def _uncompact(self, job: Job, *_: object) -> str:
        found, record = job.prompt.checkpoint, self.history.records.get(job.outcome)
        if found is None:
            return f"📄 {_NONE}"
        if job.prompt.misses_messages:
            return f"⚠️ {_ALONE}"
        await self._forget(found, job.prompt.links)
        if record is not None and record.conversation is not None:
            record.conversation.checkpoints.pop(found.digest, None)
        await self._preparer.prepare_again(job)
        now, tokens = job.prompt.checkpoint, job.estimate.tokens
        instead = (
            "the messages themselves" if now is None else f"the summary of {plural(now.covered, 'message')} before it"
        )
        due = " That is due to be compacted, so your next message has it compacted anew." if job.is_due else ""
        forgotten = f"{_FORGOTTEN} {plural(found.covered, 'message')}."
        return f"✅ {forgotten} From your next message on the model reads {instead}, {tokens:,} tokens in all.{due}"

    async def _forget(self, checkpoint: Checkpoint, links: Sequence[bytes]) -> None:
        for addon in self._addons.all:
            await addon.forgotten(checkpoint.scope, links)
        await self._drop(checkpoint)

    async def _drop(self, checkpoint: Checkpoint) -> None:
        for digest in (checkpoint.digest, bytes.fromhex(checkpoint.alias)):
            if not await self.store.drop(checkpoint.scope, digest):
                raise StoreUnavailable(_NO_CHANGES)

    async def _current(self, conversation: Conversation) -> Checkpoint:
        found = await self._find(conversation)
        if found is None:
            raise NotFound("This conversation has no summary: it was not shortened.", code="no_summary")
        return found

    async def _find(self, conversation: Conversation) -> Checkpoint | None:
        """Find the checkpoint with which the next prompt will begin, as far as can be known before the request."""
        newest = conversation.newest
        scope, links = (
            (newest.scope, newest.links) if newest.job is None else (newest.job.scope, newest.job.prompt.links)
        )
        # A checkpoint made ahead of time may cover the latest answer too, so its digest is not among the request's links.
        ahead = [
            digest
            for digest, known in reversed(conversation.checkpoints.items())
            if known["created_at"] >= newest.at and digest not in links
        ]
        return await self.store.find(scope, [*ahead, *reversed(links)])

    def _describe(self, conversation: Conversation, checkpoint: Checkpoint) -> dict[str, Any]:
        key, now = conversation.newest.outcome.key, self.history.clock() - self.history.now()
        verdicts: list[dict[str, Any]] = [
            {"at": now + event.at, **event.fields}
            for record in reversed(conversation.records)
            for event in reversed(record.outcome.events)
            if event.name == "summarised"
        ]
        return {
            "conversation": conversation.id,
            "checkpoint": describe(checkpoint),
            "tokens_before": checkpoint.tokens_before,
            "tokens_after": checkpoint.tokens_after,
            "blocks": list(_blocks(checkpoint.replacement, lambda text: self.meter.count_text(key, text))),
            "verdicts": verdicts[:_MOST_VERDICTS],
            "note": unfit_summaries(verdicts) if checkpoint.by == "extract" else "",
            "messages": list(checkpoint.replacement),
            "earlier": sum(known["covered"] < checkpoint.covered for known in conversation.checkpoints.values()),
        }


def check_idle(conversation: Conversation) -> None:
    """Refuse to change stored data of a conversation while one of its requests is being served.

    Raises:
        Conflict: a request is being served.
    """
    if conversation.running is not None:
        raise Conflict("This conversation has a request in progress: try again when it has ended.", code="busy")


def _in_place(found: Checkpoint) -> str:
    """Say what is sent in place of messages, word for word."""
    what = {"written": "a summary by a model", "extract": "an extract made by code", None: "a shorter form"}[found.by]
    figures = f"{plural(found.covered, 'message')} ({found.tokens_before:,} → {found.tokens_after:,} tokens)"
    return f"{_SHOWN} {figures}, {what}:\n\n{in_words([*filter(is_summary, found.replacement)] or found.replacement)}"


def _as_markdown(title: str, messages: Sequence[Message], checkpoint: Checkpoint | None) -> str:
    """Write messages under their roles, after a quotation of what is sent in place of the first of them."""
    summary = "" if checkpoint is None else "\n".join(f"> {line}" for line in _in_place(checkpoint).split("\n"))
    texts = (f"## {str(message.get('role')).capitalize()}\n\n{shown(message, sys.maxsize)}" for message in messages)
    return "\n\n".join(filter(None, (f"# {title}", summary, *texts))) + "\n"


def _blocks(messages: Sequence[Message], count: Callable[[str], int]) -> Iterator[dict[str, Any]]:
    """Yield summary blocks, oldest first: the text, and the parts that code appended to it; `count` gives the tokens of a text."""
    summaries = filter(is_summary, messages)
    opened = ((message, part) for message in summaries for part in message["content"].split(f"{OPEN}\n")[1:])
    blocks = [(message, part.partition(f"\n{CLOSE}")) for message, part in opened]
    for index, (message, (content, close, _)) in enumerate(each for each in blocks if each[1][1]):
        end = _end_of_text(content)
        text = content[:end].removeprefix(f"{EXTRACT}\n")
        yield {
            "index": index,
            "text": text,
            "appended": content[end:].strip("\n"),
            "rules": carried_rules({**message, "content": f"{OPEN}\n{content}{close}"}),
            "by": "extract" if content.startswith(f"{EXTRACT}\n") else "written",
            "tokens": count(text + content[end:]),
        }


def _end_of_text(content: str) -> int:
    """Return the index at which the parts appended by code begin: more of the user's words, names, the user's rules."""
    end = len(content)
    for mark in APPENDED:
        at = content.rfind(f"\n{mark}", 0, end)
        end = at if at >= 0 else end
    return end

"""What a user sees when an answer is stopped or fails."""

import time

from playwright.sync_api import expect

from tests.fakes import Gate, Reply, wait_until
from tests.openwebui.guide import QUESTION, plan
from tests.openwebui.scenes import shown
from tests.openwebui.stage import MODEL, Stage, check
from tests.wording import COMPACTED

SOON = 10.0
"""Seconds within which the backend must be left after Stop."""
OUT_OF_MEMORY = "CUDA error: out of memory"


def stop_answer(stage: Stage) -> None:
    """Stop in the middle of an answer."""
    chat, guide = stage.chat, stage.guide
    gate = Gate(at=30)
    guide.summaries, guide.answer = None, Reply(text=plan(40), gate=gate)
    chat.open(MODEL)
    chat.say("Write the plan.")
    gate.wait_reached(20)
    expect(chat.newest).to_contain_text("Day 2.")
    _stop(stage, "the answer")
    partial = chat.text
    check(partial and shown(plan(40)).startswith(partial), "what was said so far stays")
    chat.shot("4-stopped-answer")
    _goes_on(stage)


def stop_compaction(stage: Stage) -> None:
    """Stop while the conversation is compacted."""
    chat, guide = stage.chat, stage.guide
    stage.fill(0.82)
    guide.summaries = Gate()
    chat.say(QUESTION)
    guide.summaries.wait_reached(20)
    stage.check_running()
    _stop(stage, "the summary")
    chat.shot("4-stopped-compaction")
    _goes_on(stage)


def stop_pause(stage: Stage) -> None:
    """Stop while a paused answer is compacted."""
    chat, guide = stage.chat, stage.guide
    stage.fill(0.76)
    guide.summaries, guide.answer = Gate(), Reply(text=plan(40))
    chat.say("Now write the whole plan, please.")
    guide.summaries.wait_reached(20)
    stage.check_running()
    partial = chat.text
    _stop(stage, "the summary")
    check(partial and chat.text == partial, "what was said so far stays")
    chat.shot("4-stopped-pause")
    _goes_on(stage)


def error_in_answer(stage: Stage) -> None:
    """The backend reports an error in the middle of an answer that followed a compaction."""
    chat = stage.chat
    stage.fill(0.82)
    stage.guide.answer = Reply(text=plan(20), error=OUT_OF_MEMORY, after=60)
    chat.ask("Write the plan.")
    _check_partial(stage, OUT_OF_MEMORY)
    stage.check_closed(COMPACTED)
    chat.shot("5-error")
    chat.reload()
    _check_partial(stage, OUT_OF_MEMORY)
    stage.check_closed(COMPACTED)


def connection_lost(stage: Stage) -> None:
    """The backend drops the connection in the middle of an answer."""
    chat, guide = stage.chat, stage.guide
    guide.summaries, guide.answer = None, Reply(text=plan(20), cut=True, after=60)
    chat.open(MODEL)
    chat.ask("Write the plan.")
    _check_partial(stage, "The backend broke off the answer")
    chat.shot("5-connection-lost")
    chat.reload()
    _check_partial(stage, "The backend broke off the answer")
    partial = stage.newest_stored()["content"]
    guide.answer = Reply(text=plan(3))
    chat.ask("Go on.")
    roles = [(m["role"], m["content"]) for m in stage.streamed()[-1].json["messages"]]
    check(("assistant", partial) in roles, "the partial answer is part of the next request")


def backend_gone(stage: Stage) -> None:
    """The backend goes away while the conversation is compacted."""
    chat, guide = stage.chat, stage.guide
    stage.fill(0.82)
    guide.summaries = Gate()
    chat.say(QUESTION)
    guide.summaries.wait_reached(20)
    stage.check_running()
    stage.fake.stop()
    try:
        chat.wait_ended()
        check("backend" in chat.newest.inner_text().lower(), "an error says that the backend is gone")
        stage.check_closed(COMPACTED)
        chat.shot("5-backend-gone")
    finally:
        stage.fake.start()
    _goes_on(stage)


def _stop(stage: Stage, what: str) -> None:
    """Press Stop; the backend has to be left soon, and nothing more be asked of it."""
    request = next(request for request in reversed(stage.streamed()) if request.ended == "running")
    asked = len(stage.streamed())
    began = time.monotonic()
    stage.chat.stop()
    wait_until(lambda: request.ended == "cancelled", timeout=SOON)
    check(True, f"the backend was rid of {what} {time.monotonic() - began:.1f} s after Stop")
    stage.chat.wait_ended()
    check(len(stage.streamed()) == asked, "nothing more was asked of it")


def _goes_on(stage: Stage) -> None:
    """The chat can be continued."""
    stage.guide.summaries, stage.guide.answer = None, Reply(text=plan(3))
    stage.chat.ask("Let us try again.")
    check(stage.chat.text == shown(plan(3)), "the chat goes on")
    stage.check_no_status_upstream()


def _check_partial(stage: Stage, error: str) -> None:
    """The beginning of the answer is there, and below it the error."""
    expect(stage.chat.newest.get_by_text(error)).to_be_visible()
    partial = stage.chat.text
    check(partial and shown(plan(20)).startswith(partial), "the partial answer stays")
    check(error in str(stage.newest_stored()["error"]["content"]), f"below it: {error}")

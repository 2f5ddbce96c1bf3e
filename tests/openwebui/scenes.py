"""What a user sees when all goes well."""

import re

from playwright.sync_api import expect

from tests.engine.walking import spoken
from tests.fakes import Gate, Recorded, Reply, ToolCall
from tests.openwebui.guide import FERRIES, QUESTION, TAGS, TITLE, notes, plan
from tests.openwebui.stage import LARGE, MODEL, WALK_WINDOW, Stage, check
from tests.wording import COMPACTED

FIGURES = re.compile(rf"{COMPACTED} \(([\d.]+)k → ([\d.]+)k tokens\)")
"""Thousands of tokens before and after."""


def shown(markdown: str) -> str:
    """An answer as it reads on the page, one space between words."""
    return " ".join(markdown.replace("**", "").replace("\n- ", "\n").split())


def check_figures(stage: Stage) -> None:
    """The status line tells what was gained."""
    figures = FIGURES.search(stage.chat.status.inner_text())
    check(figures and float(figures[1]) > float(figures[2]), "it says how large the prompt was and is")


def model_list(stage: Stage) -> None:
    """What Spillway's list of models tells Open WebUI."""
    chat = stage.chat
    chat.open(MODEL)
    expect(chat.page.get_by_text("4k context window, compacted automatically by Spillway")).to_be_visible()
    check(True, "a new chat names the model's window")
    chat.shot("0-new-chat")
    chat.ask("Hello!")
    check(not stage.streamed()[-1].json.get("tools"), "the built-in tools stay out of a small window")


def compaction(stage: Stage) -> None:
    """A conversation that is compacted before it is sent."""
    chat, guide = stage.chat, stage.guide
    stage.fill(0.82)
    guide.summaries = Gate()
    chat.say(QUESTION)
    guide.summaries.wait_reached(20)
    stage.check_running()
    chat.shot("1-compacting")
    guide.summaries.open()
    chat.wait_ended()
    stage.check_closed(COMPACTED)
    check_figures(stage)
    check(chat.text == shown(FERRIES), "the answer is whole")
    chat.shot("1-compacted")
    stage.check_survives()
    chat.shot("1-reloaded")
    summaries = guide.summarised
    chat.ask("Thank you. Anything else?")
    check(guide.summarised == summaries, "the next turn is not summarised again")
    check("[Summary of" in str(stage.streamed()[-1].json["messages"]), "it uses the summary that is there")
    stage.check_no_status_upstream()


def pause(stage: Stage) -> None:
    """An answer that is paused at 90 % and goes on."""
    chat, guide = stage.chat, stage.guide
    stage.fill(0.775)
    guide.summaries, guide.answer = Gate(), Reply(text=plan(40))
    chat.say("Now write the whole plan, please.")
    guide.summaries.wait_reached(20)
    stage.check_running()
    partial = chat.text
    check(partial and shown(plan(40)).startswith(partial), "what was said so far stays")
    line, words = chat.status.bounding_box(), chat.newest.locator(".markdown-prose").bounding_box()
    check(line and words and line["y"] < words["y"], "the status line is above it")
    chat.shot("2-paused")
    guide.summaries.open()
    chat.wait_ended()
    stage.check_closed(COMPACTED)
    check_figures(stage)
    check(chat.text == shown(plan(40)), "the answer goes on without a seam to its end")
    check(stage.newest_stored()["content"] == plan(40), "it is stored without a seam")
    chat.shot("2-finished", beginning=True)
    stage.check_survives()
    chat.shot("2-reloaded")
    chat.ask("Thank you. Anything else?")
    stage.check_no_status_upstream()


def pauses(stage: Stage) -> None:
    """An answer longer than the window, paused more than once."""
    chat = stage.chat
    stage.guide.summaries, stage.guide.answer = None, Reply(text=plan(230))
    chat.open(MODEL)
    chat.ask("Write the plan for half a year.")
    check(len(stage.newest_stored()["statusHistory"]) >= 4, "it was paused at least twice")
    check(chat.text == shown(plan(230)), "no word is lost or doubled in an answer of almost two windows")
    stage.check_closed(COMPACTED)
    stage.check_follow_ups()
    prompts = [request.json["messages"][0]["content"] for request in stage.fake.chats()]
    task = next(prompt for prompt in reversed(prompts) if '"follow_ups"' in prompt)
    fits = task.startswith("### Task:") and plan(230) not in task
    check(fits and not stage.fake.overflows, "the background task about it was cut to fit")
    chat.shot("3-pauses", beginning=True)
    chat.ask("Thank you. Anything else?")
    stage.check_no_status_upstream()


def tasks(stage: Stage) -> None:
    """Open WebUI's background tasks: title, tags, follow-ups."""
    chat = stage.chat
    stage.fill(0.82)  # the last answer is one after a compaction
    chat.ask(QUESTION)
    stage.check_closed(COMPACTED)
    expect(chat.title).to_have_text(TITLE)
    check(chat.title.inner_text() == TITLE, f"the title is {TITLE}")
    stage.check_follow_ups()
    check(chat.stored()["meta"]["tags"] == TAGS, f"the tags are {', '.join(TAGS)}")
    asked = [request for request in stage.fake.chats() if not request.json.get("stream")]
    whole = all(len(request.json["messages"]) == 1 and request.status == 200 for request in asked)
    check(whole, f"{len(asked)} tasks so far, each one message and one answer")
    chat.shot("6-tasks")


def own_compaction(stage: Stage) -> None:
    """Open WebUI's own compaction, of a chat of more than three windows."""
    chat, guide = stage.chat, stage.guide
    guide.summaries, guide.answer = None, Reply(text="Noted.")
    chat.open(MODEL)
    chat.ask("Remember: the code of harbour is amber-4471.")
    for part in range(1, 6):
        chat.ask(notes(f"Part {part} of what I noted in {next(guide.rides)}:", 2800, stage.count_tokens))
    asked = len(stage.fake.chats())
    check(chat.compact(MODEL)["compacted"], "it compacts the chat when it is told to")
    parts = len(stage.fake.chats()) - asked - 1
    check(parts > 3, f"what it asks to be summarised was read in {parts} parts")
    check("amber-4471" in stage.newest_stored()["contextSummary"], "its summary tells what was said first")
    chat.ask("Which code had the harbour?")
    prompt = stage.streamed()[-1].json["messages"]
    check("amber-4471" in str(prompt) and "Part 4 of what" not in str(prompt), "the next answer is given from it")
    chat.shot("9-own-compaction")
    check(not stage.fake.overflows and not stage.fake.invalid_histories, "no request was too long")
    stage.check_no_status_upstream()


def tools(stage: Stage) -> None:
    """A model with a larger window: it is offered Open WebUI's tools, and calls one after a compaction."""
    chat, guide = stage.chat, stage.guide
    guide.summaries, guide.answer = None, Reply(text=plan(8))
    chat.open(LARGE)
    chat.ask("Hello!")
    offered = max(len(callable_tools(request)) for request in stage.large.chats())
    check(offered > 20, f"{offered} tools are offered")
    chat.ask(notes("My notes:", 7500, stage.count_tokens))
    guide.call, guide.answer = ToolCall("get_current_timestamp"), Reply(text="Time to ride.")
    chat.ask(notes("More notes. What time is it?", 4800, stage.count_tokens))
    stage.check_closed(COMPACTED)
    asked = [request for request in stage.large.chats() if request.json.get("stream")]
    result = asked[-1].json["messages"][-1]
    check(result["role"] == "tool" and "timestamp" in result["content"], "its call was carried out")
    check(chat.text == "Time to ride.", "the answer follows it")
    check(not stage.large.invalid_histories, "every call has its result")
    chat.shot("8-tools", beginning=True)
    stage.check_no_status_upstream()


def callable_tools(request: Recorded) -> set[str]:
    """Names of the tools that a request defines, and of those of which it has a line (`find_tools`)."""
    tools = {tool["function"]["name"]: tool["function"] for tool in request.json.get("tools", ())}
    return {*re.findall(r"^- (\w+)", tools.pop("find_tools", {}).get("description", ""), re.MULTILINE), *tools}


def real_engine(stage: Stage) -> None:
    """A real llama-server whose answer does not fit its window."""
    chat, words = stage.chat, stage.engine.words
    chat.open("walk")
    chat.say(f"Go on after {words[0]}, 1 2 3!")
    expect(chat.status).to_be_visible(timeout=60_000)
    chat.wait_ended()
    said = chat.text.split()
    check(said == spoken(words, words[0], 999).split(), f"{len(said)} words in their order, window {WALK_WINDOW}")
    stage.check_closed(COMPACTED)
    chat.shot("7-real-engine", beginning=True)

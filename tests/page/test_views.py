"""What each view of the page shows, and what may be done there, seen in a real browser."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.fakes import FakeModel, Gate, GenericFake, LlamaCppFake, OllamaFake, Reply, VllmFake, scripted
from tests.fakes.waiting import wait_until
from tests.page.stage import MODEL, Stage, Visit, staged, visiting
from tests.proxying import metric, running_proxy

RED = "rgb(180, 35, 24)"

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def stage(browser: Browser) -> Iterator[Stage]:
    with staged() as running:
        yield running


@pytest.fixture
def visit(browser: Browser, stage: Stage) -> Iterator[Visit]:
    with visiting(browser, stage.proxy.url) as visit:
        yield visit


def open_talk(visit: Visit, topic: str) -> Page:
    """The view of the one conversation about a topic, by its row."""
    page = visit.open("conversations")
    page.get_by_role("link", name=f"Remember: the code of {topic}").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(topic)
    return page


# Conversations


def test_a_row_fills_while_an_answer_streams_and_a_button_ends_it(visit: Visit, stage: Stage) -> None:
    page = visit.open("conversations")
    asking = stage.slowly("glaciers")
    row = page.locator(".rows > .row", has_text="glaciers")
    bar = row.get_by_role("img")
    expect(row.locator(".state")).to_have_text("answering")
    expect(bar).to_have_accessible_name(re.compile("answer"))
    before = bar.get_attribute("aria-label")
    stage.holder.gate.release(40)
    expect(bar).not_to_have_accessible_name(before or "")
    expect(row).to_contain_text("tokens/s")
    expect(page.locator(".totals")).to_contain_text(re.compile(r"1 active · 0 waiting · \d+ today"))
    expect(row).to_contain_text(f"{MODEL} · llamacpp")
    row.get_by_role("button", name="Stop").click()
    expect(row.locator(".state")).to_have_text("idle")
    expect(row.get_by_role("button", name="Stop")).to_have_count(0)
    answer = asking.ended()
    assert answer.finishes == ["stop"]
    assert "w30" in answer.text
    assert "w120" not in answer.text


def test_marks_stand_where_it_compacts_and_where_it_pauses(visit: Visit, stage: Stage) -> None:
    stage.talk("marks", 1)
    row = visit.open("conversations").locator(".rows > .row", has_text="marks")
    places = {kind: float(row.locator(f".mark.{kind}").get_attribute("x1") or 0) for kind in ("trigger", "pause")}
    assert places == pytest.approx({"trigger": 800, "pause": 900}, abs=1)
    parts = row.locator(".part").evaluate_all("parts => parts.map(part => Number(part.getAttribute('width')))")
    assert 0 < sum(parts) < 800


# One conversation


def test_the_timeline_has_a_sentence_for_each_turn_and_folds_what_was_unchanged(visit: Visit, stage: Stage) -> None:
    talk = stage.compacted("timeline")
    page = open_talk(visit, "timeline0")
    newest = page.locator(".turns > .turn").first
    expect(newest).to_contain_text(
        re.compile(r"Compacted before sending: \d+ messages became a summary, [78]\d\s%\s→\s[2-6]\d\s%")
    )
    folded = page.locator(".quiet-turns summary")
    expect(folded).to_contain_text(f"{talk.turns - 1} unchanged turns")
    expect(page.get_by_role("img", name=f"Fill of the window over {talk.turns} turns")).to_be_visible()
    expect(page.locator(".chart .event.compacted").first).to_be_attached()
    folded.click()
    expect(page.locator(".turn")).to_have_count(talk.turns)
    talk.ask()
    expect(newest).to_contain_text(re.compile(r"Sent with a summary of \d+ messages"))


def test_a_turn_says_how_many_tools_were_sent(visit: Visit, stage: Stage) -> None:
    words = {"type": "object", "properties": {"what": {"type": "string", "description": "words " * 40}}}
    tools = [{"type": "function", "function": {"name": f"tool_{n}", "parameters": words}} for n in range(60)]
    talk = stage.talk("tools", 1)
    body = {"model": "m", "messages": [*talk.messages, {"role": "user", "content": "Go on."}], "tools": tools}
    stage.proxy.chat(body, authorization="Bearer a-key")
    turn = open_talk(visit, "tools0").locator(".turns > .turn").first
    expect(turn).to_contain_text(re.compile(r"0 of 60 tools sent in full\."))


def test_a_turn_says_what_add_ons_did_and_all_that_is_stored_of_it_can_be_deleted(browser: Browser) -> None:
    gate, talk = Gate(2), [{"role": "user", "content": "Where do walruses sleep?"}]
    fake = LlamaCppFake([FakeModel(MODEL)], scripted(["on ice, mostly"] * 3), gate=gate, saves=True)
    with fake, running_proxy(fake, archive="on", grace=0.01, heartbeat=0.01) as proxy, visiting(browser, proxy.url) as visit:
        body = {"model": MODEL, "messages": talk, "stream": True}
        with proxy.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            parts, seen = answer.iter_bytes(), b""
            while b'"delta":{},"finish_reason":null' not in seen:
                seen += next(parts)
            gate.open()
            assert b"[DONE]" in b"".join(parts)
        on = [{"role": "assistant", "content": "on ice, mostly"}, {"role": "user", "content": "Why?"}]
        for messages in ([{"role": "user", "content": "In between?"}], [*talk, *on]):
            proxy.chat({"model": MODEL, "messages": messages})
        page = visit.open("conversations")
        page.get_by_role("link", name="walruses").click()
        turns = page.locator(".turns > .turn")
        expect(turns.last).to_contain_text(re.compile(r"1 message archived\. \d+ heartbeats? sent while"))
        expect(turns.first).to_contain_text(re.compile(r"\d+ tokens restored from disk\."))
        assert sum(metric(proxy, "spillway_heartbeats_total").values()) >= 1
        page.get_by_role("button", name="Delete conversation").click()
        page.get_by_role("button", name="Delete", exact=True).click()
        expect(page.get_by_role("link", name=re.compile("walruses|between"))).to_have_count(1)


def test_a_turn_says_with_which_window_its_model_was_loaded(browser: Browser) -> None:
    fake = OllamaFake([FakeModel(MODEL, trained_window=131_072)], scripted(["on ice"]))
    with fake, running_proxy(fake, models={"*": {"window": 16_384}}) as proxy, visiting(browser, proxy.url) as visit:
        proxy.chat({"model": MODEL, "messages": [{"role": "user", "content": "Where do walruses sleep?"}]})
        page = visit.open("conversations")
        page.get_by_role("link", name="walruses").click()
        expect(page.locator(".turns > .turn")).to_contain_text("Loaded with a window of 16,384 tokens.")


def test_a_button_compacts_with_a_focus_and_shows_before_and_after(visit: Visit, stage: Stage) -> None:
    talk = stage.talk("demand", 3)
    page = open_talk(visit, "demand0")
    page.get_by_label("Focus (optional)").fill("the code of demand1")
    page.get_by_role("button", name="Compact now").click()
    expect(page.locator("form.compact")).to_contain_text(re.compile(r"\d+ → \d+ tokens, written by the model"))
    expect(page.locator(".turns > .turn").first).to_contain_text("Compacted on demand: ")
    expect(page.locator(".block").first).to_be_visible()
    talk.ask()
    assert "about1x3 " not in stage.forwarded()


def test_a_failed_request_is_red_and_says_why_and_a_client_that_left_is_not(visit: Visit, stage: Stage) -> None:
    question = {"role": "user", "content": "What about the iceberg?"}
    too_long = {"role": "system", "content": "word " * 4000}
    assert stage.proxy.chat({"model": MODEL, "messages": [too_long, question]}).status_code == 400
    page = visit.open("conversations")
    row = page.locator(".rows > .row", has_text="iceberg")
    expect(row.locator(".state")).to_have_text("failed")
    expect(row).to_have_css("border-top-color", RED)
    expect(row).to_contain_text("The last request failed: the prompt does not fit the window.")
    row.get_by_role("link").click()
    turn = page.locator(".turn.trouble")
    expect(turn).to_contain_text(re.compile(r"Refused: the prompt does not fit the window \([45],\d{3} of 2,048 tokens\)\."))
    turn.get_by_role("link").click()
    expect(page.get_by_text("Nothing was forwarded.")).to_be_visible()
    asking = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me slowly about the one who left."}]}
    stage.holder.gate = Gate(at=30)
    with stage.proxy.client.stream("POST", "/v1/chat/completions", json={**asking, "stream": True}) as answer:
        next(answer.iter_raw())
    page = visit.open("conversations")
    row = page.locator(".rows > .row", has_text="one who left")
    expect(row.locator(".state")).to_have_text("idle")
    expect(row).not_to_have_css("border-top-color", RED)
    row.get_by_role("link").click()
    expect(page.locator(".turn")).to_contain_text("The client left.")
    expect(page.locator(".turn.trouble")).to_have_count(0)


def test_a_refused_prompt_is_shown_as_large_as_it_was_before_it_was_cut_in_vain(browser: Browser) -> None:
    with staged(documents="off", recall="off") as stage, visiting(browser, stage.proxy.url) as visit:
        lines = "\n".join(f"Line {number}: words of the sea, {number * 7} of them." for number in range(3000))
        question = {"role": "user", "content": f"{lines}\nWhat is the sea?"}
        talk = stage.talk("refusals", 1)
        head = {"authorization": f"Bearer {talk.key}"}
        body = {"model": MODEL, "messages": [*talk.messages, question]}
        assert stage.proxy.chat(body, **head).status_code == 400
        page = visit.open("conversations")
        row = page.locator(".rows > .row")
        expect(row).to_contain_text(re.compile(r"of 2,048 tokens \(\d,?\d{3}\s%\)"))
        expect(row.locator(".part.over")).to_be_visible()
        row.get_by_role("link").click()
        expect(page.locator(".chart > svg .event.trouble")).to_have_count(1)


def test_the_difference_shows_what_became_of_each_message(visit: Visit, stage: Stage) -> None:
    stage.compacted("difference")
    page = open_talk(visit, "difference0")
    page.locator(".turn").first.get_by_role("link").click()
    expect(page.get_by_role("heading", name="What was changed")).to_be_visible()
    block = page.locator(".change-row.summarised")
    expect(block.locator("pre").first).to_contain_text("Goal and constraints")
    block.get_by_text("it replaces").click()
    expect(block).to_contain_text("Remember: the code of difference")
    page.get_by_text(re.compile(r"messages unchanged")).click()
    expect(page.locator(".change-row.kept").last.locator("pre")).to_contain_text("the code of difference")
    expect(page.locator(".events")).to_contain_text("compacted")


def test_what_was_recalled_is_shown_by_itself(visit: Visit, stage: Stage) -> None:
    talk = stage.compacted("recalled")
    talk.ask({"role": "user", "content": "Where did I say about1x17 about1x18 about1x19?"})
    page = open_talk(visit, "recalled0")
    expect(page.locator(".turn").first).to_contain_text(re.compile(r"\d passages? recalled"))
    page.locator(".turn").first.get_by_role("link").click()
    row = page.locator(".change-row.recalled")
    expect(row.locator("pre").first).to_contain_text("about1x17 about1x18")
    expect(row.locator("pre").first).not_to_contain_text("Where did I say")


def test_a_shortened_message_is_shown_as_it_was_sent_with_the_old_text_folded(visit: Visit, stage: Stage) -> None:
    lines = "\n".join(f"line {number} of the listing" for number in range(700))
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "What does the listing say?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": lines},
    ]
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]
    assert stage.proxy.chat({"model": MODEL, "messages": messages, "tools": tools}).status_code == 200
    page = visit.open("conversations")
    page.get_by_role("link", name="What does the listing say?").click()
    page.locator(".turn").first.get_by_role("link").click()
    row = page.locator(".change-row.shortened")
    expect(row.locator("pre").first).to_contain_text("line 0 of the listing")
    expect(row.locator("pre").first).not_to_contain_text("line 350 of the listing")
    row.get_by_text("As the client sent it").click()
    expect(row.locator("pre").last).to_contain_text("line 350 of the listing")


def test_a_forgotten_summary_is_not_in_the_next_prompt(visit: Visit, stage: Stage) -> None:
    talk = stage.compacted("forgotten")
    visit.refused = {404}  # there is no summary any more
    page = open_talk(visit, "forgotten0")
    page.get_by_role("button", name="Forget summary").click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Forget summary").click()
    page.get_by_role("group", name="Forget summary").get_by_role("button", name="Forget").click()
    expect(page.get_by_role("status")).to_have_text("The next prompt is sent without this summary.")
    expect(page.get_by_text("Nothing has been summarised yet.")).to_be_visible()
    assert "Goal and constraints" in stage.forwarded()
    # Shorter than it was, so that nothing has to be compacted again.
    talk.messages = talk.messages[:5]
    talk.ask()
    assert "Goal and constraints" not in stage.forwarded()
    assert "the code of forgotten1 is" in stage.forwarded()


def test_a_pinned_message_is_in_the_next_prompt_until_it_is_unpinned(visit: Visit, stage: Stage) -> None:
    talk = stage.compacted("pinned")
    page = open_talk(visit, "pinned0")
    page.locator(".turn").first.get_by_role("link").click()
    page.locator(".change-row.summarised").get_by_text("it replaces").click()
    page.get_by_role("button", name="Pin message 4").click()
    expect(page.get_by_role("status")).to_have_text("Pinned: every prompt holds it word for word.")
    talk.ask()
    assert "- Remember: the code of pinned1 is" in stage.forwarded()
    page.get_by_role("link", name="Open the conversation").click()
    page.get_by_role("button", name="Unpin 1").click()
    expect(page.get_by_role("heading", name="Pins")).to_have_count(0)
    talk.ask()
    assert "- Remember: the code of pinned1 is" not in stage.forwarded()


def test_a_conversation_is_exported_as_a_file(visit: Visit, stage: Stage) -> None:
    stage.compacted("exported")
    page = open_talk(visit, "exported0")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    written = download.value.path().read_text()
    assert written.startswith("# Remember: the code of exported0 is")
    assert "Goal and constraints" in written
    assert "Remember: the code of exported1 is" in written


# Models, savings, log


def test_a_models_window_is_told_with_its_origin(visit: Visit, stage: Stage) -> None:
    stage.talk("counting", 3)
    page = visit.open("models")
    model = page.get_by_role("article", name=MODEL)
    expect(model).to_contain_text("2,048 tokens llama.cpp, slot; reported for the loaded model")
    expect(model).to_contain_text("resumes by")
    expect(model).to_contain_text("tokenizer")


def test_what_was_learned_can_be_forgotten(browser: Browser) -> None:
    question = [{"role": "user", "content": "word " * 900}]
    fake = GenericFake(brain=scripted(["ok"] * 9), window=700)
    with fake, running_proxy(fake) as proxy, visiting(browser, proxy.url) as visit:
        asked: list[Any] = []
        visit.page.on("request", lambda request: asked.extend([request] * request.url.endswith("/spillway/models")))
        page = visit.open("models")
        model = page.get_by_role("article")
        expect(model).to_contain_text("Nothing learned")
        proxy.chat({"model": "fake-model", "messages": question})
        page.get_by_role("button", name="Refresh").click()
        expect(model).to_contain_text("700 tokens")
        model.get_by_role("button", name="Forget: fake-model, window").click()
        expect(model).to_contain_text("Nothing learned")
        expect(model).not_to_contain_text("700 tokens")
        assert len(asked) == 3, "once, and on demand"


def test_the_model_that_summarises_is_chosen_for_all(browser: Browser) -> None:
    fake = LlamaCppFake([FakeModel("m")])
    helper = VllmFake([FakeModel("small")])
    with fake, helper, running_proxy(fake, helper) as proxy, visiting(browser, proxy.url) as visit:
        page = visit.open("models")
        page.get_by_label("Summaries by").select_option("small")
        expect(page.get_by_role("status")).to_have_text("small summarises from now on")
        models = proxy.client.get("/spillway/models").json()
        effective = [each["effective"] for backend in models["backends"] for each in backend["models"].values()]
        assert {models["summary_model"], *(each["summary_model"] for each in effective)} == {"small"}
        visit.open("models")
        expect(page.get_by_label("Summaries by")).to_have_value("small")
        page.get_by_label("Summaries by").select_option("as configured")
        expect(page.get_by_role("status")).to_have_text("Summaries as configured")
        assert proxy.client.get("/spillway/models").json()["summary_model"] is None


def test_malformed_calls_stand_with_the_model_that_wrote_them(browser: Browser) -> None:
    call = '<tool_call>{"name": "get_weather", "arguments": {"town": "Paris"}}</tool_call>'
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]
    fake = LlamaCppFake([FakeModel(MODEL)], lambda _: Reply(text=call))
    with fake, running_proxy(fake, models={MODEL: {"tools": False}}) as proxy, visiting(browser, proxy.url) as visit:
        proxy.chat({"model": MODEL, "messages": [{"role": "user", "content": "Hot?"}], "tools": tools})
        model = visit.open("models").get_by_role("article", name=MODEL)
        expect(model).to_contain_text("2 wrong arguments")
        expect(model.get_by_role("row", name="tool_call")).to_contain_text("2")


def test_savings_are_what_is_told_with_how_they_are_computed(visit: Visit, stage: Stage) -> None:
    stage.compacted("savings")
    page = visit.open("savings")
    told = stage.proxy.client.get("/spillway/savings").json()
    expect(page.locator(".tile", has_text="tokens saved")).to_contain_text(f"{told['tokens']['not_sent']:,}")
    expect(page.get_by_text("no backend takes more")).to_be_visible()


def test_the_log_can_be_filtered_and_opens_requests(visit: Visit, stage: Stage) -> None:
    stage.talk("log", 1)
    assert stage.proxy.chat({"model": MODEL, "messages": "none"}).status_code == 400
    page = visit.open("log")
    lines = page.locator("tbody tr")
    expect(lines.filter(has_text="200").first).to_be_visible()
    page.get_by_label("errors").check()
    expect(lines.filter(has_text="200")).to_have_count(0)
    expect(lines.first).to_contain_text("400")
    page.get_by_label("errors").uncheck()
    page.get_by_label("search").fill("the code of log0")
    expect(lines).to_have_count(1)
    expect(lines).to_contain_text("python-httpx")
    page.get_by_label("search").fill("")
    page.get_by_label("status").select_option("200")
    expect(lines.filter(has_text="400")).to_have_count(0)
    shown = lines.count()
    stage.talk("log2", 1)
    wait_until(lambda: lines.count() > min(shown, 99), 10)
    lines.first.get_by_role("link", name="Open the request").click()
    expect(page.get_by_role("heading", name="What happened")).to_be_visible()

"""What was done with a request is told alike wherever it is told."""

import logging
import re
from typing import Any

import pytest

from proxy.cli import main
from tests.fakes import FakeBackend, FakeModel, LlamaCppFake, VllmFake, summariser, walk
from tests.pipeline.test_outcomes import until
from tests.pipeline.test_policy import tool
from tests.pipeline.test_recalling import WINDOW, brain, long_chat
from tests.proxying import metric, running_proxy

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
LONG: dict[str, Any] = {"messages": long_chat("And now?")}
STEPS: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "Read them."},
        *(
            each
            for n in range(6)
            for each in (
                {"role": "assistant", "tool_calls": [{"id": f"c{n}", "type": "function", "function": {"name": "read", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": f"c{n}", "content": f"{n} " + "word and word " * 160},
            )
        ),
        {"role": "assistant", "content": "Read."},
        {"role": "user", "content": "And now?"},
    ]
}  # fmt: skip
TEXT: dict[str, Any] = {"messages": [{"role": "user", "content": f"{'This is said at length. ' * 700}\nSum it up."}]}
TOOLS: dict[str, Any] = {**HELLO, "tools": [tool(n) for n in range(20)]}
AS_SENT = ("forwarded", "observed", "passed")
AFTER = [{"role": "assistant", "content": "So."}, {"role": "user", "content": "Go on."}]


@pytest.mark.parametrize(
    ("action", "body", "settings", "sentence"),
    [
        ("passed", HELLO, {"models": {"m": {"managed": False}}}, r"Passed through\."),
        ("observed", HELLO, {"strategy": "observe"}, r"Observed: \d+ % full, nothing to do\."),
        ("forwarded", HELLO, {}, r"Sent unchanged, \d+ % full\."),
        ("shaped", TOOLS, {}, r"Sent with (shorter tools|tools on demand), \d+ % full\."),
        ("moved", LONG, {"overflow": "large"}, r"Sent to large for its larger window, \d+ % full\."),
        ("compacted", LONG, {}, r"Compacted before sending: \d+ messages became (a summary|an extract), \d+ % → \d+ %"),
        ("continued", LONG, {}, r"Sent with (a summary|an extract) of \d+ messages, \d+ % full\."),
        ("trimmed", LONG, {"strategy": "truncate"}, r"Trimmed before sending: oldest turns dropped, "),
        ("pruned", STEPS, {}, r"Shortened before sending: \d+ tool results? shortened, "),
        ("read", TEXT, {}, r"Read in parts before sending: "),
    ],
)
def test_what_was_done_is_told_alike_everywhere(
    action: str,
    body: dict[str, Any],
    settings: dict[str, Any],
    sentence: str,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, logger="spillway")
    body = {"model": "m", "max_tokens": 30, **body}
    models = [FakeModel("m", WINDOW)]
    kind: type[FakeBackend] = LlamaCppFake
    if action == "moved":
        models, kind = [*models, FakeModel("large", 8 * WINDOW)], VllmFake
    with kind(models, brain) as fake, running_proxy(fake, recall="off", **settings) as proxy:
        answer = proxy.chat(body)
        if action == "continued":
            answer = proxy.chat({**body, "messages": [*body["messages"], *AFTER]})
        assert answer.status_code == 200
        assert answer.headers.get("x-spillway-action") == (None if action in ("passed", "observed") else action)
        name, sent = answer.headers["x-request-id"], fake.chats()[-1]
        assert (sent.body == answer.request.content) is (action in AS_SENT)
        until(lambda: proxy.client.get("/spillway/outcomes").json()["outcomes"][0]["status"] > 0)
        row = proxy.client.get("/spillway/outcomes").json()["outcomes"][0]
        turn = proxy.client.get(f"/spillway/requests/{name}").json()
        for told in (row, turn):
            assert (told["id"], told["action"]) == (name, action)
            assert re.match(sentence, told["sentence"]), told["sentence"]
        assert main(["tail", "--no-follow", "-n", "1", "--url", proxy.url]) == 0
        line = caplog.messages[-1]
        for shown, word in ((line, f"action={action}"), (capsys.readouterr().out, action)):
            assert f" {word} " in shown
            assert row["sentence"] in shown
        counted = metric(proxy, "spillway_requests_total")
        assert any(f'action="{action}"' in labels for labels in counted)
        summarised = metric(proxy, "spillway_summarised_requests_total")
        assert bool(summarised) is (action in ("compacted", "continued"))
        saved = row["saved"]
        assert (saved == 0) is (action in (*AS_SENT, "moved"))
        if saved:
            assert f"saved={saved} " in line
            assert saved + answer.json()["usage"]["prompt_tokens"] <= WINDOW


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ("truncate", r"Compacted at a pause: oldest turns dropped, 6\d % → \d+ %"),
        ("auto", r"Compacted at a pause: \d+ messages became a summary, 6\d % → \d+ %"),
    ],
)
def test_what_was_shortened_inside_an_answer_was_not_before_it_was_sent(strategy: str, sentence: str) -> None:
    talk = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "word " * 100} for n in range(24)]
    asked = {"model": "m", "messages": [*talk, {"role": "user", "content": "count to 3000"}]}
    fake = LlamaCppFake([FakeModel("m", 4096)], summariser(walk(last=1200)))
    with fake, running_proxy(fake, strategy=strategy) as proxy:
        proxy.chat(asked)
        said = proxy.client.get("/spillway/outcomes").json()["outcomes"][0]["sentence"]
        assert re.match(sentence, said), said
        assert "Paused once to compact while answering, resumed once." in said

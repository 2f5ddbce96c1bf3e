"""Each add-on can be left out: a chat goes on past its window without it, streamed and whole."""

from typing import Any

import pytest

from proxy import app
from proxy.addon import AddOn
from tests.fakes import FakeModel, LlamaCppFake, qa, summariser
from tests.proxying import read_stream, running_proxy

NAMES = (
    *(
        "Pins", "ConversationSummaries", "Commands", "CompactNow", "PromptPrefix", "CacheGaps", "AheadCompactor",
        "DroppedFields",
    ),
    *("RequestHistory", "RequestLog", "Metrics", "Recaller", "Archivist", "ThinkingBudget", "DocumentReader"),
    *("ToolsOnDemand", "SlotKeeper", ""),
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.rows(3)
def test_a_chat_outlives_its_window_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    every = app.addons_of

    def others(*parts: Any) -> tuple[AddOn, ...]:
        addons = every(*parts)
        assert {type(addon).__name__ for addon in addons} == set(NAMES) - {""}, "one is in no row here"
        return tuple(addon for addon in addons if name and type(addon).__name__ != name)

    monkeypatch.setattr(app, "addons_of", others)
    history: list[dict[str, Any]] = []
    with LlamaCppFake([FakeModel("m", 2048)], summariser(qa())) as fake, running_proxy(fake) as proxy:
        for turn in range(24):
            words = " ".join(f"word{turn}x{i}" for i in range(60))
            history.append({"role": "user", "content": f"Remember: the code of item{turn} is c{turn}. {words}"})
            answer = proxy.chat({"model": "m", "messages": history, "stream": bool(turn % 2)})
            assert answer.status_code == 200
            text = read_stream(answer.content).text if turn % 2 else answer.json()["choices"][0]["message"]["content"]
            assert text
            history.append({"role": "assistant", "content": text})
        assert fake.overflows == 0
        sent = str(fake.chats()[-1].json["messages"])
        assert "word2x5 " not in sent, "what was compacted is not sent any more"

"""Answers of servers that tell no window: what ends them, though their client did not, is found out, and they go on."""

from typing import Any

import pytest
from typing_extensions import override

from tests.fakes import FakeModel, GenericFake, summariser, walk, words
from tests.fakes.model import Prompt, Refused
from tests.proxying import Proxy, read_stream, running_proxy

pytestmark = pytest.mark.slow

LAST = 2500
"""Words of the answer; a word of this model is about two tokens."""


class CappedFake(GenericFake):
    """A server with a bound of its own for every answer, in tokens."""

    cap: int | None = None

    @override
    def limit(self, body: dict[str, Any]) -> int | None:
        wanted = [bound for bound in (super().limit(body), self.cap) if bound is not None]
        return min(wanted, default=None)


class WordlessFake(GenericFake):
    """A server that refuses without a figure."""

    @override
    def overflow(self, prompt: Prompt) -> Refused:
        return Refused(400, self.error(400, "Your input exceeds the context window of this model."), overflow=True)


def asked(proxy: Proxy, *, stream: bool, text: str = "go", **fields: Any) -> tuple[str, str, dict[str, Any]]:
    body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": text}], **fields}
    answer = proxy.chat(body)
    if stream:
        seen = read_stream(answer.content)
        assert (len(seen.ids), seen.done, seen.errors) == (1, 1, [])
        (finish,) = seen.finishes
        return seen.text, finish, seen.usage or {}
    (choice,) = answer.json()["choices"]
    return choice["message"]["content"], choice["finish_reason"], answer.json()["usage"]


def believed(proxy: Proxy) -> int | None:
    told = proxy.client.get("/spillway/models").json()["backends"][0]["models"]["m"]["window"]
    return None if told is None else int(told["value"])


@pytest.mark.parametrize("window", [2048, 3072])
@pytest.mark.rows(1)
def test_answers_that_fill_the_window_go_on(window: int, stream: bool) -> None:
    brain = summariser(walk(last=LAST + window))
    with GenericFake([FakeModel("m", window)], brain) as fake, running_proxy(fake) as proxy:
        for text in ("go", "go on then " * 12):
            said, finish, _ = asked(proxy, stream=stream, text=text)
            assert (said, finish) == (words(1, LAST + window), "stop")
            assert fake.overflows == 0


def test_a_bound_that_ends_an_answer_near_a_usual_window_is_none(stream: bool) -> None:
    """The bound and the prompt make 2,048 together, by chance."""
    brain = summariser(walk(last=LAST))
    with CappedFake([FakeModel("m", 32_768)], brain) as fake, running_proxy(fake) as proxy:
        fake.cap = 2048 - fake.count({"model": "m", "messages": [{"role": "user", "content": "go"}]})
        for text in ("go", "go", "go on then, if you please " * 5):
            said, finish, _ = asked(proxy, stream=stream, text=text)
            assert (said, finish) == (words(1, LAST), "stop")
            assert believed(proxy) is None


@pytest.mark.parametrize("window", [2500, 3333])
@pytest.mark.rows(1)
def test_an_unusual_window_is_assumed_for_the_answer_alone(window: int, stream: bool) -> None:
    brain = summariser(walk(last=LAST))
    with GenericFake([FakeModel("m", window)], brain) as fake, running_proxy(fake) as proxy:
        text, finish, _ = asked(proxy, stream=stream)
        assert (text, finish) == (words(1, LAST), "stop")
        assert believed(proxy) in (None, window)
        assert fake.overflows == 0


@pytest.mark.parametrize("cap", [1024, 777])
@pytest.mark.rows(1)
def test_a_bound_of_the_server_is_no_window_and_the_answer_goes_on(cap: int, stream: bool) -> None:
    brain = summariser(walk(last=LAST))
    with CappedFake([FakeModel("m", 60_000)], brain, cap=cap) as fake, running_proxy(fake) as proxy:
        for text in ("go", "go on then, if you please"):
            said, finish, _ = asked(proxy, stream=stream, text=text)
            assert (said, finish) == (words(1, LAST), "stop")
            assert believed(proxy) is None


@pytest.mark.parametrize("silent", [True, False])
def test_a_window_that_looks_like_a_bound_is_told_by_the_refusal(stream: bool, silent: bool) -> None:
    """The prompt leaves a round number of tokens to the answer, by chance; `silent`: nothing reports usage either."""
    brain = summariser(walk(last=LAST))
    fake = GenericFake([FakeModel("m", 2048, template_overhead=4)], brain, stream_usage=not silent)
    with fake, running_proxy(fake) as proxy:
        prompts = ["go" + " a" * extra for extra in range(100)]
        chance = next(
            prompt
            for prompt in prompts
            if (2048 - fake.count({"model": "m", "messages": [{"role": "user", "content": prompt}]})) % 64 == 0
        )
        text, finish, _ = asked(proxy, stream=stream, text=chance)
        assert (text, finish) == (words(1, LAST), "stop")


@pytest.mark.parametrize("bound", [100, 4001])
def test_the_bound_of_a_client_stays_exact(bound: int, stream: bool) -> None:
    brain = summariser(walk(last=LAST))
    with GenericFake([FakeModel("m", 2048)], brain) as fake, running_proxy(fake) as proxy:
        asks: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
        text, finish, usage = asked(proxy, stream=stream, max_tokens=bound, **asks)
        assert finish == "length"
        assert words(1, LAST).startswith(text)
        assert abs(2 * len(text.split()) - bound) <= 3
        assert bound <= usage["completion_tokens"] <= bound + 4 * len(fake.chats())


def test_what_can_not_be_joined_ends_where_the_server_ends_it() -> None:
    with GenericFake([FakeModel("m", 2048)], walk(last=LAST)) as fake, running_proxy(fake) as proxy:
        assert asked(proxy, stream=True, response_format={"type": "json_object"})[1] == "length"
        assert len(fake.chats()) == 1


def test_of_refusals_without_a_figure_the_second_teaches_a_window() -> None:
    """So that not every turn begins with a refusal; what is held nevertheless disproves it."""
    messages: list[dict[str, Any]] = []
    with WordlessFake([FakeModel("m", 4096)], summariser(walk(last=9))) as fake, running_proxy(fake) as proxy:
        refusals = []
        for turn in range(30):
            messages += [{"role": "user", "content": f"Turn {turn}: " + f"the mill of row {turn} turns " * 40}]
            answer = proxy.chat({"model": "m", "messages": messages})
            assert answer.status_code == 200
            messages += [{"role": "assistant", "content": "Noted."}]
            refusals.append(fake.overflows)
        assert refusals[0] == 0 < refusals[-1] <= 6
        assert believed(proxy) is not None

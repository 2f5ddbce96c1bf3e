"""A backend that does not continue an answer at once: it is asked again, else the client is told who refused."""

import pytest

from proxy.backends.refusals import MOST_RETRIES
from tests.attempts.test_stream_corners import BROKEN, FULL, GO, MODELS, full, rest
from tests.dialects.asking import PATHS, Read, question, read
from tests.proxying import Proxy, running_proxy
from tests.rawbackend import SSE, answering, replying
from tests.stream.support import DONE, ending, opening, said


def refusing(status: str, error: str, *headers: str) -> bytes:
    return answering({"error": {"message": error}}, status, headers)


BUSY = refusing("503 Service Unavailable", "Loading model", "retry-after: 0")
PASSING = {
    "503 with Retry-After": BUSY,
    "429 without": refusing("429 Too Many Requests", "slow down"),
    "a reset": b"",
    "an error that breaks off": BROKEN,
    "an unload": refusing("400 Bad Request", "No models loaded. Please load a model in the developer page."),
}
LASTING = {
    "a key": (refusing("401 Unauthorized", "no such key"), 1),
    "a long rest": (refusing("503 Service Unavailable", "back tomorrow", "retry-after: 3600"), 1),
    "never ready": (BUSY, 1 + MOST_RETRIES),
}


def ask(proxy: Proxy, path: str, *, stream: bool) -> tuple[int, Read]:
    answer = proxy.client.post(path, json=question(path, stream=stream, messages=GO))
    return answer.status_code, read(path, answer.content, stream=stream)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("how", PASSING)
@pytest.mark.rows(5)
def test_a_backend_that_refuses_once_is_asked_again(how: str, path: str, stream: bool) -> None:
    last = opening(name="two") + said(" w299 and", name="two") + ending(name="two") + DONE
    answers = [full(stream=stream), PASSING[how], SSE + (rest() if stream else last)]
    with replying(*answers) as backend, running_proxy(backend.setting, models=MODELS, strategy="truncate") as proxy:
        status, seen = ask(proxy, path, stream=stream)
    assert (status, seen.error, seen.ends) == (200, None, 1)
    assert seen.finish in ("stop", "completed", "end_turn")
    assert seen.text == FULL + (" and the end." if stream else " and")
    assert len(backend.chats()) == 3


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("how", LASTING)
@pytest.mark.rows(6)
def test_a_backend_that_keeps_refusing_is_named_in_an_error(how: str, path: str, stream: bool) -> None:
    refusal, asked = LASTING[how]
    with (
        replying(full(stream=stream), refusal) as backend,
        running_proxy(backend.setting, models=MODELS, strategy="truncate") as proxy,
    ):
        status, seen = ask(proxy, path, stream=stream)
    assert status == (200 if stream else 502)
    assert seen.ends == 1
    assert seen.error is not None
    assert seen.error.startswith("Backend raw does not continue the answer")
    assert seen.finish in (None, "failed")
    assert FULL.startswith(seen.text)
    assert len(backend.chats()) == 1 + asked

"""What goes through a tap is what it keeps."""

from __future__ import annotations

import httpx

from tests.engine.tap import tapped
from tests.fakes import FakeModel, LlamaCppFake


def test_both_directions_are_kept_as_they_are() -> None:
    with LlamaCppFake([FakeModel("m", 2048)]) as fake, tapped(fake.url) as tap:
        for stream in (b"false", b"true"):
            asked = b'{"model": "m", "messages": [{"role": "user",  "content": "Hi"}], "stream": %s}' % stream
            answer = httpx.post(
                f"{tap.url}/v1/chat/completions",
                content=asked,
                headers={"content-type": "application/json"},
                trust_env=False,
            )
            assert answer.status_code == 200
            tap.wait_for(len(fake.chats()))
            assert tap.chats()[-1].answered == answer.content
            assert tap.chats()[-1].asked == asked == fake.chats()[-1].body
            assert answer.content == fake.chats()[-1].response
        assert len(tap.chats()) == 2
        assert httpx.get(f"{tap.url}/nothing", trust_env=False).status_code == 404

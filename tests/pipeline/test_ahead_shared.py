"""Compaction ahead of time where others share the store, and where the store is lost."""

import pytest

from tests.fakes import Gate, LlamaCppFake, qa, summariser
from tests.pipeline.talk import MODEL, Talk, holding, summaries, wait_ahead
from tests.proxying import UNREDUCED, read_stream, running_proxy
from tests.store.support import RedisServer, redis_server
from tests.store.support import own_redis as doomed
from tests.wording import COMPACTED

__all__ = ["doomed", "redis_server"]

pytestmark = pytest.mark.slow
LATER = 20.0


def test_what_one_replica_did_ahead_another_finds(redis_server: RedisServer) -> None:
    with (
        LlamaCppFake([MODEL], summariser(qa())) as fake,
        running_proxy(fake, store=redis_server.url, ahead="on") as one,
        running_proxy(fake, store=redis_server.url, ahead="on") as two,
    ):
        talk = Talk(one)
        talk.ask()
        wait_ahead(one, done=1)
        talk.proxy = two
        assert talk.ask().headers["x-spillway-action"] in UNREDUCED
        assert len(summaries(fake)) == 1


def test_what_one_replica_is_at_another_waits_for(redis_server: RedisServer) -> None:
    gate = Gate()
    with (
        LlamaCppFake([MODEL], holding(gate)) as fake,
        running_proxy(fake, store=redis_server.url, ahead="on", strategy="summarize") as one,
        running_proxy(fake, store=redis_server.url, ahead="on", strategy="summarize", grace=0.0) as two,
    ):
        talk = Talk(one, "thing")
        talk.ask()
        gate.wait_reached(LATER)
        talk.proxy = two
        with talk.following(b"Compacting", LATER) as came:
            gate.open()
        seen = read_stream(b"".join(came))
        assert COMPACTED in seen.events[-1]["data"]["description"]
        assert len(summaries(fake)) == 1

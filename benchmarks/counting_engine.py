"""Estimates against `usage.prompt_tokens` of the real llama-server, over 40-turn conversations."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import httpx

from benchmarks.counting_accuracy import Figures, Messages, Truth, follow
from benchmarks.counting_corpus import conversation
from proxy.tokens.meter import Meter
from tests.engine.cache import cached_model
from tests.engine.server import Engine, llama_server
from tests.engine.spec import ModelSpec

TURNS = 40
WARM_UP = 5
"""Requests after which the aims hold."""


def reported(client: httpx.AsyncClient, engine: Engine) -> Truth:
    """The truth by llama-server: it generates one token and reports the prompt."""

    async def count(messages: Messages) -> int:
        body = {"model": engine.model, "messages": messages, "max_tokens": 1, "cache_prompt": True}
        reply = await client.post(engine.url + "/v1/chat/completions", json=body)
        return int(reply.raise_for_status().json()["usage"]["prompt_tokens"])

    return count


async def measured(vocab: Path | None, *, known: bool, seeds: Sequence[int], turns: int = TURNS) -> Figures:
    """Follow conversations on a tiny model with the tokenizer of `vocab` (default: one trained here).

    Args:
        vocab: GGUF file whose tokenizer to use.
        known: let the meter have the file's name, which tells its family.
        seeds: of the conversations.
        turns: of each conversation.
    """
    model = cached_model(ModelSpec(vocab=vocab))
    found, meter, key = Figures(), Meter(), ("llama.cpp", "tiny")
    await meter.measure(("", ""), {})
    if known:
        meter.model(key).resolve(hint=vocab.stem if vocab is not None else None)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "llama-server.log"
        with llama_server(model.path, log=log, ctx=65536) as engine:
            async with httpx.AsyncClient(timeout=120.0, trust_env=False) as client:
                for seed in seeds:
                    messages = conversation(seed, turns, size=240)
                    found.add(await follow(meter, key, messages, reported(client, engine)))
    found.fresh, found.anchored = found.fresh[WARM_UP:], found.anchored[WARM_UP:]
    return found

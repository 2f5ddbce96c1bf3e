"""The clients' own packages in front of a running proxy. They try nothing twice, and leave no connection open."""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.proxying import Proxy

_made: list[anthropic.Anthropic] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Clients keep their connections until somebody closes them; who uses Anthropic's imports this too."""
    yield
    while _made:
        _made.pop().close()


def anthropic_sdk(proxy: Proxy, key: str = "none") -> anthropic.Anthropic:
    """Anthropic's; it takes no connections but its own."""
    _made.append(anthropic.Anthropic(base_url=proxy.url, api_key=key, max_retries=0, timeout=60))
    return _made[-1]


def openai_sdk(proxy: Proxy, key: str = "none") -> openai.OpenAI:
    """OpenAI's, over the connections of the proxy's client, which is closed with it."""
    client: Any = proxy.client
    return openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=key, max_retries=0, http_client=client)

"""The demo as a server inside this process."""

from __future__ import annotations

import httpx
import openai
import pytest

from proxy.demo.app import create_demo, serve_on_loopback
from proxy.demo.model import MODEL

pytestmark = pytest.mark.anyio


async def test_it_serves_on_loopback_and_is_gone_afterwards() -> None:
    async with serve_on_loopback(create_demo(pace=0)) as url, httpx.AsyncClient() as client:
        assert url.startswith("http://127.0.0.1:")
        assert (await client.get(f"{url}/v1/models")).json()["data"][0]["id"] == MODEL
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/v1/models")


async def test_the_openai_sdk_streams_from_it() -> None:
    async with (
        serve_on_loopback(create_demo(pace=0)) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as sdk,
    ):
        stream = await sdk.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "count to 20"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text.endswith("18, 19, 20.\n\nThat was all of it.")
    assert chunks[-1].usage is not None


async def test_it_stops_soon_even_while_somebody_is_reading() -> None:
    body = {"messages": [{"role": "user", "content": "count to 3000"}], "stream": True}
    async with httpx.AsyncClient() as client:
        async with serve_on_loopback(create_demo(pace=30)) as url:
            request = client.build_request("POST", f"{url}/v1/chat/completions", json=body)
            answer = await client.send(request, stream=True)
            assert answer.status_code == 200
        await answer.aclose()

"""Asking a fake, the plain way."""

from __future__ import annotations

from typing import Any

import httpx

from tests.fakes.base import CHAT
from tests.fakes.chat import FakeBackend
from tests.fakes.model import Message


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def body(*messages: Message, **fields: Any) -> dict[str, Any]:
    """A chat request for the default model."""
    return {"model": "fake-model", "messages": list(messages) or [user("hello")], **fields}


def fetch(method: str, url: str, **options: Any) -> httpx.Response:
    """One request on a connection of its own. Reading certificates would take longer than all the rest."""
    return httpx.request(method, url, **{"verify": False, "timeout": 30, **options})


def ask(fake: FakeBackend, *messages: Message, **fields: Any) -> httpx.Response:
    """Send a chat request and read the whole response."""
    return fetch("POST", fake.url + CHAT, json=body(*messages, **fields))


def get(fake: FakeBackend, path: str) -> Any:
    """JSON of a GET that must succeed."""
    response = fetch("GET", fake.url + path)
    assert response.status_code == 200, response.text
    return response.json()


def post(fake: FakeBackend, path: str, json: Any) -> Any:
    """JSON of a POST that must succeed."""
    response = fetch("POST", fake.url + path, json=json)
    assert response.status_code < 300, response.text
    return response.json()

"""Asking the Spillway that runs for what it tells of itself (`docs/api-live.md`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

from proxy.settings import Settings
from proxy.wire import sse
from proxy.wire.jsontext import JsonObject

_ANSWER = httpx.Timeout(60.0, read=None)
"""The live feed is silent for ten seconds at a time, and explaining a long history may take a while."""


class NotTold(Exception):
    """It could not be asked, or did not say; the text says why, and what to do."""


class Running:
    """The Spillway that runs at a URL."""

    def __init__(self, url: str, settings: Settings) -> None:
        """`url` without `/v1`. The first admin key goes with each request, else the first key."""
        self.url = url.rstrip("/").removesuffix("/v1")
        keys = (*settings.admin_keys, *settings.api_keys)
        self._headers = {"authorization": f"Bearer {keys[0]}"} if keys else {}

    def get(self, path: str) -> JsonObject:
        """What it tells there.

        Raises:
            NotTold: it does not answer, or with an error.
        """
        return self._asked("GET", path, None)

    def post(self, path: str, body: bytes) -> JsonObject:
        """What it answers to a JSON body.

        Raises:
            NotTold: see `get`.
        """
        return self._asked("POST", path, body)

    def live(self, path: str) -> Iterator[tuple[str, Any]]:
        """Names and data of events as they come, without an end of its own.

        Raises:
            NotTold: it does not answer, or went away.
        """
        splitter, headers = sse.FrameSplitter(), {**self._headers, "accept-encoding": "identity"}
        try:
            with httpx.stream(
                "GET", self.url + path, headers=headers, timeout=_ANSWER, trust_env=False
            ) as feed:
                if feed.status_code != 200:
                    feed.read()
                    raise NotTold(_why(self.url, feed))
                for piece in feed.iter_raw():
                    for frame in sse.frames(splitter.feed(piece)):
                        if (data := sse.data_of(frame)) is not None:
                            yield _name_of(frame), json.loads(data)
        except httpx.HTTPError as error:
            raise NotTold(_gone(self.url, error)) from None
        raise NotTold(f"the Spillway at {self.url} has ended")

    def _asked(self, method: str, path: str, body: bytes | None) -> JsonObject:
        headers = {**self._headers, "content-type": "application/json"}
        try:
            answer = httpx.request(
                method, self.url + path, headers=headers, content=body, timeout=_ANSWER, trust_env=False
            )
        except httpx.HTTPError as error:
            raise NotTold(_gone(self.url, error)) from None
        if answer.status_code != 200:
            raise NotTold(_why(self.url, answer))
        told: JsonObject = answer.json()
        return told


def _name_of(frame: bytes) -> str:
    named = (line[6:] for line in frame.split(b"\n") if line.startswith(b"event:"))
    return next(named, b"message").strip().decode()


def _gone(url: str, error: httpx.HTTPError) -> str:
    return f"no Spillway answers at {url} ({type(error).__name__}): start it with `spillway serve`, or say where it is with --url"


def _why(url: str, answer: httpx.Response) -> str:
    """An error in words; whatever else answers there gives none that can be told."""
    try:
        _ = answer.headers["x-request-id"]
        error = answer.json()["error"]
        said = str(error["message"])
    except (ValueError, KeyError, TypeError):
        return f"what answers at {url} with {answer.status_code} is no Spillway, or one that is older"
    if answer.status_code == 401:
        return f"{said} Set SPILLWAY_ADMIN_KEYS or SPILLWAY_API_KEYS to those that the Spillway at {url} has."
    return said

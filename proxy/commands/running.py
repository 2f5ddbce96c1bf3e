"""The Spillway that runs, as the other commands see it."""

from __future__ import annotations

import httpx

from proxy.settings import Settings

LISTENING = "Spillway listening on "
"""How the line begins that tells where; who starts one waits for it."""


def url_of(settings: Settings) -> str:
    """Where it is, by these settings, without `/v1`."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104 - where others listen
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def listens(url: str) -> bool | None:
    """Whether what answers there is one; None: nothing listens."""
    try:
        answer = httpx.get(f"{url}/healthz", timeout=5.0, trust_env=False)
        return bool(answer.json() == {"status": "ok"} and "x-request-id" in answer.headers)
    except httpx.ConnectError:
        return None
    except (httpx.HTTPError, ValueError):
        return False

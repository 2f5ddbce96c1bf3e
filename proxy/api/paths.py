"""The paths of OpenAI's interface that are answered here, in every spelling that base URLs give rise to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

MODELS = "/v1/models"
SPELLED = "spillway.spelled"
"""Where the scope keeps a path as the client wrote it."""

PREFIXES = ("/v1", "/api/v1", "")
"""What people end their base URL with: OpenAI's way, OpenRouter's and LM Studio's, and nothing."""


def _spellings(path: str) -> Iterator[str]:
    """Each prefix, with slashes too many where a base URL that ends in one, or a path that does, puts them."""
    endpoint = path.removeprefix("/v1")
    for prefix in PREFIXES:
        for before in ("", "/"):
            for between in ("", "/"):
                for after in ("", "/"):
                    yield before + prefix + between + endpoint + after


def canonical(managed: Iterable[str]) -> Mapping[tuple[str, str], str]:
    """Method and path as a client may write it, to the path that is meant: of managed ones, and of the model list."""
    answered = (*(("POST", path) for path in managed), ("GET", MODELS))
    return {(method, spelling): path for method, path in answered for spelling in _spellings(path)}

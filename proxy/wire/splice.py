"""Adding a field to a JSON object without re-serialising the rest of it."""

from __future__ import annotations

import re

_ASK_USAGE = b'"stream_options":{"include_usage":true}'
_OPEN = re.compile(rb"^(?:\xef\xbb\xbf)?\s*\{\s*(\})?")


def ask_usage(raw: bytes) -> bytes:
    """Put `stream_options.include_usage` first into a request that has no `stream_options`.

    First, because the place is known without parsing; every other byte stays as it was.
    """
    match = _OPEN.match(raw)
    if match is None:
        return raw
    brace = raw.index(b"{") + 1
    comma = b"" if match.group(1) else b","
    return raw[:brace] + _ASK_USAGE + comma + raw[brace:]

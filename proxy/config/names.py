"""Names of settings in the environment: ours, misspelt, removed, or put there by others."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches

PREFIX = "SPILLWAY_"
REMOVED = {
    "agent_prompt": "SPILLWAY_SYSTEM_PROMPT=off leaves system prompts as they are",
    "allow_admin": "say SPILLWAY_ALLOW=admin; several with commas between them",
    "allow_open": "say SPILLWAY_ALLOW=open; several with commas between them",
    "answer_cap": "SPILLWAY_LIMITS__ANSWER_CAP bounds answers",
    "ask_usage": "a client that sets stream_options is left alone; take it out",
    "client_timeout": "it is a minute; take it out",
    "connect_timeout": "it is ten seconds; take it out",
    "emulate_tools": "SPILLWAY_TOOL_MODE=native sends tools as they came",
    "grace": "a waiting stream is opened after two seconds; take it out",
    "guide_file": "SPILLWAY_LIMITS__GUIDE bounds guide files",
    "keep_alive": "it is 75 seconds; take it out",
    "max_answer": "SPILLWAY_MAX_BODY bounds answers too",
    "max_bodies": "a proxy in front, such as nginx, bounds that; take it out",
    "max_connections_per_address": "a proxy in front, such as nginx, bounds that; take it out",
    "max_header": "it is 64 KiB; take it out",
    "max_messages": "it is 10,000; take it out",
    "max_parts": "it is 20,000; take it out",
    "metrics_open": "say SPILLWAY_ALLOW=metrics; several with commas between them",
    "profile_ttl": "it is 30 seconds; take it out",
    "read_leaked_calls": "SPILLWAY_TOOL_MODE=native leaves text as it is",
    "recall_share": "SPILLWAY_LIMITS__RECALL bounds recall, in tokens",
    "show_content": "say SPILLWAY_ALLOW=content; several with commas between them",
    "store_timeout": "it is a second; take it out",
    "system_prompt_file": "put its text into SPILLWAY_SYSTEM_PROMPT",
    "target_tokens": "SPILLWAY_TARGET takes tokens too",
    "tools_first": "SPILLWAY_TOOLS_ALLOWED and SPILLWAY_LIMITS__TOOLS bound what tools take",
    "trigger_tokens": "SPILLWAY_TRIGGER takes tokens too",
    "vain_resumes": "SPILLWAY_ANSWER_WINDOWS bounds answers",
    "virtual_window": "it is 200,000 tokens; take it out",
}
"""Settings of earlier versions, and what to do instead."""
_ALLOWED_BY = {"allow_admin": "admin", "allow_open": "open", "metrics_open": "metrics", "show_content": "content"}
"""Switches of earlier versions, and the word for each in `SPILLWAY_ALLOW`."""
_OFF = ("", "0", "false", "no", "off")

# Kubernetes tells every pod of the services beside it (pkg/kubelet/envvars), Docker's links of the linked container:
# with a service called spillway, or spillway-redis, these names begin as ours do.
_INJECTED = re.compile(
    r"SPILLWAY_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?|ENV_\w+)"
)
_INJECTED_VALUES = {"PORT": ("tcp://", "udp://", "sctp://"), "NAME": ("/",)}
"""Last word of a name to beginnings of its value, where the name alone is ambiguous: `SPILLWAY_PORT` is a setting too."""


def is_injected(name: str, value: str) -> bool:
    """Return whether Kubernetes or Docker set a variable; `name` in capitals."""
    beginnings = _INJECTED_VALUES.get(name.rpartition("_")[2], ())
    return _INJECTED.fullmatch(name) is not None or value.startswith(tuple(beginnings))


def misspelt(environment: Mapping[str, str | None], settings: Mapping[str, Collection[str]]) -> str | None:
    """Describe the first variable of ours that is no setting, with the nearest one; None if all are settings.

    Args:
        environment: all of it; empty variables are ignored.
        settings: names of settings to names of the fields one level below `NAME__KEY__`, lower case.
    """
    for name, value in sorted(environment.items()):
        upper = name.upper()
        if upper.startswith(PREFIX) and value and not is_injected(upper, value):
            wrong = _wrong(upper.removeprefix(PREFIX).lower().split("__"), settings)
            if wrong is not None:
                removed = removed_setting(name)
                nearest = f"; the nearest is {PREFIX}{wrong.upper()}" if wrong else ""
                return removed or f"{name}: no such setting{nearest}"
    return None


def upgraded(environment: Mapping[str, str | None]) -> tuple[dict[str, str | None], list[str]]:
    """Environment without the settings of earlier versions, and a warning for each: a container still starts after an update.

    What the removed switches allowed is added to `SPILLWAY_ALLOW`.
    """
    current, warnings, allowed = dict[str, str | None](), list[str](), list[str]()
    for name, value in environment.items():
        old = name.upper().removeprefix(PREFIX).lower()
        if not name.upper().startswith(PREFIX) or old not in REMOVED:
            current[name] = value
            continue
        warnings.append(removed_setting(name.upper()) or "")
        if old in _ALLOWED_BY and (value or "").strip().lower() not in _OFF:
            allowed.append(_ALLOWED_BY[old])
    if allowed:
        name = next((each for each in current if each.upper() == f"{PREFIX}ALLOW"), f"{PREFIX.lower()}allow")
        current[name] = ",".join(filter(None, (current.get(name), *allowed)))
    return current, warnings


def removed_setting(name: str) -> str | None:
    """Describe what to do about a removed setting, by its name in the environment; None: it is no removed one."""
    cure = REMOVED.get(name.upper().removeprefix(PREFIX).rpartition("__")[2].lower())
    return f"{name}: no longer a setting; {cure}" if cure else None


def _wrong(parts: list[str], settings: Mapping[str, Collection[str]]) -> str | None:
    """Return the nearest setting to a name that is none, empty if nothing is near; None if it is a setting."""
    head, *rest = parts
    fields = settings.get(head)
    if fields is None:
        nearest = _nearest(head, settings)
        return "__".join([nearest, *rest]) if nearest and settings[nearest] else nearest
    if rest and not fields:
        return head
    # Below a key there is one more level; what is deeper is the key's own affair, since it may hold `__` itself.
    if len(rest) == 2 and rest[1] not in fields:
        nearest = _nearest(rest[1], fields)
        return "__".join([head, rest[0], nearest]) if nearest else head
    return None


def _nearest(word: str, words: Collection[str]) -> str:
    return next(iter(get_close_matches(word, words, n=1)), "")


def without_user(text: str) -> str:
    """Remove users and passwords from the URLs in a text."""
    return re.sub(r"[^/\s'\"]*@", "…@", text)

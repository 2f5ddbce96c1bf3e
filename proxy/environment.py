"""How settings are written: names in the environment, ours or not or misspelt, and the values that have a form of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

PREFIX = "SPILLWAY_"

# Kubernetes tells every pod of the services beside it (pkg/kubelet/envvars), Docker's links of the linked container:
# with a service called spillway, or spillway-redis, these names begin as ours do.
_INJECTED = re.compile(
    r"SPILLWAY_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?|ENV_\w+)"
)
_INJECTED_VALUES = {"PORT": ("tcp://", "udp://", "sctp://"), "NAME": ("/",)}
"""Last word of a name to beginnings of its value, where the name alone does not tell: `SPILLWAY_PORT` is a setting too."""


def is_injected(name: str, value: str) -> bool:
    """Whether Kubernetes or Docker put the variable there; `name` in capitals."""
    told = _INJECTED_VALUES.get(name.rpartition("_")[2], ())
    return _INJECTED.fullmatch(name) is not None or value.startswith(tuple(told))


def misspelt(environment: Mapping[str, str], settings: Mapping[str, Collection[str]]) -> str | None:
    """What is wrong with the first variable of ours that is no setting, and which is nearest; None if all are.

    Args:
        environment: all of it; a variable that is empty says nothing and is not looked at.
        settings: names of settings to names of the fields one level below `NAME__KEY__`, lower case.
    """
    for name, value in sorted(environment.items()):
        upper = name.upper()
        if upper.startswith(PREFIX) and value and not is_injected(upper, value):
            wrong = _wrong(upper.removeprefix(PREFIX).lower().split("__"), settings)
            if wrong is not None:
                nearest = f"; the nearest is {PREFIX}{wrong.upper()}" if wrong else ""
                return f"{name}: no such setting{nearest}"
    return None


def _wrong(parts: list[str], settings: Mapping[str, Collection[str]]) -> str | None:
    """None where the name is a setting's, else the nearest one that is, or nothing."""
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


def listed(value: Any) -> Any:
    """A list as people type it: JSON, or words with commas between them.

    Raises:
        ValueError: it is neither, or has nothing in it but commas: then somebody meant something.
    """
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        if not (words := [word.strip() for word in value.split(",") if word.strip()]):
            raise ValueError("must be a list with something in it; leave it out for none")
        return words
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError(
            'must be a list: JSON, such as ["a", "b"], or words with commas between them'
        ) from None


def numbered(value: Any) -> Any:
    """A list as the environment spells it with `__0__`, `__1__` …, which arrives as a table of numbers."""
    if isinstance(value, dict) and value and all(str(key).isdecimal() for key in value):
        return [value[key] for key in sorted(value, key=int)]
    return value


def host_glob(value: str) -> str:
    """A name by which clients call, or a glob over such names, in lower case.

    Raises:
        ValueError: it is more than that, or less.
    """
    if not re.fullmatch(r"[\w.*-]+", value, re.ASCII):
        raise ValueError("must be a name such as spillway or *.example.com, without scheme, port and path")
    return value.lower().removesuffix(".")


def origin_glob(value: str) -> str:
    """The origin of web pages as browsers tell it, or a glob over such, in lower case.

    Raises:
        ValueError: it is none.
    """
    if not re.fullmatch(r"\*|null|[A-Za-z*][\w.+*-]*://[^\s/?#@]+/?", value, re.ASCII):
        raise ValueError("must be an origin such as https://chat.example.com, without path, or *")
    return value.lower().rstrip("/")


def without_user(text: str) -> str:
    """A text with URLs in it, without the users and passwords in those."""
    return re.sub(r"[^/\s'\"]*@", "…@", text)

"""Reading replies of unknown shape: every function takes any JSON, and returns None or an empty value instead of raising."""

import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, TypeVar

from proxy.backends.profile import Fact, Trust

T = TypeVar("T")

MOST_TOKENS = 10**9
"""Above this a figure means "no limit was set" (transformers writes 1e30), not a window."""
MOST_OBJECTS = 10_000
"""Entries (models, or providers of one) that are read from a list; the longest known list has 700."""

_LOADED = "n_ctx n_ctx_slot loaded_context_length loaded_context_window current_context_length"
_ALLOWED = (
    "context_length context_window context_size context_limit context_tokens context_window_size ctx_size num_ctx ctx_len "
    "max_context max_context_length max_context_tokens max_context_size max_model_len max_seq_len max_sequence_length "
    "max_input_tokens max_prompt_tokens max_input_length max_total_tokens max_total_num_tokens input_token_limit"
)
_TRAINED = "n_ctx_train max_context_window max_position_embeddings trained_context_length native_context_length"
_WINDOWS = {
    name.replace("_", ""): trust
    for names, trust in ((_LOADED, Trust.LOADED), (_ALLOWED, Trust.LISTED), (_TRAINED, Trust.TRAINED))
    for name in names.split()
}
"""Meaning of a window by its field's name without underscores: the loaded instance's, the allowed, or the trained one."""
_NESTED = (
    "architecture capabilities config default_generation_settings details info limits load_config meta model_config model_info "
    "model_spec parameters recipe_options top_provider"
)
_INSIDE = frozenset(_NESTED.split())
"""Names of nested objects in which servers report more about a model."""

_STATE = r"\.(?:ssm\.state_size|wkv\.head_size|shortconv\.l_cache|kda\.head_dim|attention\.sliding_window)"
"""GGUF keys of layers that keep a state, or a sliding window of the prompt; a value of 0 means that they do not."""


def tokens(value: object) -> int | None:
    """Read a positive number of tokens, also from a float or a string of digits."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) <= 12 else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and 0 < value <= MOST_TOKENS else None


def size_of(entry: Mapping[str, Any], name: str) -> int:
    """Read a number of bytes; 0 if there is none."""
    value = entry.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def nonblank(value: object) -> str | None:
    """Read a string that is not blank."""
    return value if isinstance(value, str) and value.strip() else None


def switch(value: object) -> bool | None:
    """Read a JSON boolean."""
    return value if isinstance(value, bool) else None


def mapping(value: object) -> dict[str, Any]:
    """Read a JSON object; anything else gives an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    """Read a JSON array; anything else gives an empty one."""
    return value if isinstance(value, list) else []


def objects(value: object) -> list[dict[str, Any]]:
    """Read the objects of a JSON array, up to `MOST_OBJECTS`."""
    return [item for item in items(value)[:MOST_OBJECTS] if isinstance(item, dict)]


def contains(value: object, word: str) -> bool | None:
    """Return whether a JSON array contains `word`; None when there is no array."""
    return word in value if isinstance(value, list) else None


def smallest(values: Iterable[int | None]) -> int | None:
    """Return the smallest of the known figures; None if none is known."""
    return min((value for value in values if value is not None), default=None)


def fact(value: T | None, origin: str, trust: Trust) -> Fact[T] | None:
    """Make a fact, or None if the value is unknown."""
    return None if value is None else Fact(value, origin, trust)


def openai_models(value: object) -> list[dict[str, Any]]:
    """Return the entries of an OpenAI model list that have an id; empty if the reply is anything else."""
    return [entry for entry in objects(mapping(value).get("data")) if nonblank(entry.get("id")) is not None]


def by_name(named: Iterable[tuple[object, T]]) -> dict[str, T]:
    """Index values by name, so that a list need not be searched once for each of its entries.

    The first value of a name wins; anything but a non-empty string as a name is left out.
    """
    # Lists of 4,000 models took 3.5 s of the event loop when they were searched for each entry.
    found: dict[str, T] = {}
    for name, value in named:
        if isinstance(name, str) and name:
            found.setdefault(name, value)
    return found


def entries_by_name(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Index the entries of an OpenAI model list by id, and by alias unless an id is the same."""
    aliases = ((alias, entry) for entry in entries for alias in items(entry.get("aliases")))
    return by_name(chain(((entry.get("id"), entry) for entry in entries), aliases))


def windows(entry: object, depth: int = 2) -> dict[Trust, int]:
    """Find the reported windows of a model in tokens, by their meaning; of several with one meaning the smallest."""
    found = dict[Trust, int]()
    for name, value in mapping(entry).items():
        inner = windows(value, depth - 1) if depth and name in _INSIDE else {}
        family, _, last = name.rpartition(".")  # `llama.context_length` is GGUF's, of the model
        trust = Trust.TRAINED if family else _WINDOWS.get(last.replace("_", "").replace("-", "").lower())
        named = {trust: tokens(value)} if trust is not None and last.lower().strip("_") else {}
        for each, window in (*inner.items(), *named.items()):
            if window is not None:
                found[each] = min(window, found.get(each, window))
    return found


def window(entry: object, origin: str, trust: Trust | None = None) -> Fact[int] | None:
    """Return the window in force: a loaded instance's, or else the allowed one. `trust` overrides the field's meaning."""
    found = windows(entry)
    known = [each for each in (Trust.LOADED, Trust.LISTED) if each in found]
    return Fact(found[known[0]], origin, trust or known[0]) if known else None


def trained(entry: object, origin: str) -> Fact[int] | None:
    """Return the window that a model was trained for."""
    return fact(windows(entry).get(Trust.TRAINED), origin, Trust.TRAINED)


def rolls_back(metadata: Mapping[str, Any] | str, origin: str) -> Fact[bool] | None:
    """Return whether a cache can be cut back to any token, by the metadata of a GGUF file or the file's beginning."""
    if isinstance(metadata, str):
        # The key, type 4 (uint32), and a value other than 0.
        found = re.search(rf"{_STATE}\x04\0{{3}}(?!\0{{4}})", metadata) is not None
    else:
        found = any(value and re.search(f"{_STATE}$", key) for key, value in metadata.items())
    return Fact(not found, origin, Trust.LISTED) if metadata else None

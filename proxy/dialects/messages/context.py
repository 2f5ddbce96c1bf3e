"""Anthropic's context management: what a request wishes, and how an answer tells what came of it.

Fields: Anthropic API reference, "Context editing" and "Compaction" (2026), and PyPI `anthropic` 2.12.0, `types/beta/`. The
betas that ask for it in a header are taken without being looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.core.errors import BadRequest
from proxy.core.managing import Cleared, ClearResults, ClearThoughts, CompactionRequest, Edit, Managed, SealedCompaction
from proxy.dialects.bodies import dicts_in, is_count, text_in

_RESULTS, _THOUGHTS, _COMPACT = "clear_tool_uses_20250919", "clear_thinking_20251015", "compact_20260112"
EDITS = (_RESULTS, _THOUGHTS, _COMPACT)
"""The kinds that are known here."""
_DEFAULT_CLEARING, _DEFAULT_KEEP = 100_000, 3
_DEFAULT_COMPACTING = 150_000
COMPACTION = "compaction"
"""The type of the block that holds one, and the reason of an answer that ends with it."""


def edits_in(form: Mapping[str, Any]) -> list[Edit]:
    """Edits that leave something out of the history.

    Raises:
        BadRequest: `context_management` is malformed.
    """
    edits: list[Edit] = []
    for edit in _listed(form):
        kind = text_in(edit, "type")
        if kind == _RESULTS:
            edits.append(_results(edit))
        elif kind == _THOUGHTS and (keep := _thinking_keep(edit.get("keep"))) is not None:
            edits.append(ClearThoughts(keep))
    return edits


def unknown_edits(form: Mapping[str, Any]) -> list[str]:
    """Kinds of edits that are not known here, and left out."""
    kinds = [text_in(edit, "type") for edit in _listed(form)]
    return [kind for kind in kinds if kind not in EDITS]


def compaction_in(form: Mapping[str, Any]) -> CompactionRequest | None:
    """The compaction that the client wants of its history; None: it does not ask.

    Raises:
        BadRequest: it asks for two things that do not go together, or for a kind that is not known.
    """
    wanted = form.get("compaction")
    if wanted is not None:
        if form.get("context_management"):
            raise BadRequest("`compaction` cannot be combined with `context_management`.", param="compaction")
        if not isinstance(wanted, dict) or text_in(wanted, "type") != "summarize":
            raise BadRequest('`compaction` must be {"type": "summarize"}.', param="compaction")
        return CompactionRequest(now=True, instructions=text_in(wanted, "instructions").strip())
    edit = next((edit for edit in _listed(form) if text_in(edit, "type") == _COMPACT), None)
    if edit is None:
        return None
    return CompactionRequest(
        trigger=_value(edit, "trigger", "input_tokens") or _DEFAULT_COMPACTING,
        instructions=text_in(edit, "instructions").strip(),
        pauses=edit.get("pause_after_compaction") is True,
    )


def since_compaction(messages: Sequence[Any]) -> tuple[SealedCompaction | None, list[Any]]:
    """The newest compaction that is sent back, and what comes after it; all of the messages if there is none.

    One without content has failed, and says nothing.
    """
    for index in reversed(range(len(messages))):
        message = messages[index] if isinstance(messages[index], dict) else {}
        blocks = dicts_in(message, "content")
        for at in reversed(range(len(blocks))):
            block = blocks[at]
            if block.get("type") == COMPACTION and (words := text_in(block, "content")):
                rest = [{**message, "content": blocks[at + 1 :]}] if blocks[at + 1 :] else []
                return SealedCompaction(text_in(block, "encrypted_content"), words), [*rest, *messages[index + 1 :]]
    return None, list(messages)


# -- what came of it


def compaction_block(compaction: SealedCompaction) -> dict[str, Any]:
    """A compaction as a content block."""
    return {"type": COMPACTION, "content": compaction.words, "encrypted_content": compaction.seal}


def applied(managed: Managed) -> dict[str, Any]:
    """Report of the edits, as an answer has it."""
    return {"applied_edits": [_applied(each) for each in managed.cleared]}


def iterations(managed: Managed, usage: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The usage of each step: of the compaction, which the usage of the answer leaves out, and of the answer."""
    counted = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    answered = {name: usage.get(name, 0) for name in (*counted, "cache_creation")}
    spent = {**dict.fromkeys(counted, 0), "cache_creation": answered["cache_creation"]}
    spent["input_tokens"], spent["output_tokens"] = managed.spent
    compacting = [{"type": COMPACTION, **spent}] if managed.sealed_compaction is not None else []
    return [*compacting, *([] if managed.ended else [{"type": "message", **answered}])]


def _applied(cleared: Cleared) -> dict[str, Any]:
    tokens = {"cleared_input_tokens": cleared.tokens}
    if cleared.what == "thoughts":
        return {"type": _THOUGHTS, "cleared_thinking_turns": cleared.number, **tokens}
    return {"type": _RESULTS, "cleared_tool_uses": cleared.number, **tokens}


# -- fields


def _listed(form: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    wanted = form.get("context_management")
    if wanted is None:
        return []
    edits = wanted.get("edits", []) if isinstance(wanted, dict) else None
    if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in edits):
        raise BadRequest(
            "`context_management.edits` must be a list of edits, which are objects.", param="context_management.edits"
        )
    return edits


def _results(edit: Mapping[str, Any]) -> ClearResults:
    over_tokens = _value(edit, "trigger", "input_tokens")
    over_results = _value(edit, "trigger", "tool_uses")
    if over_tokens is None and over_results is None:
        over_tokens = _DEFAULT_CLEARING
    keep, inputs = _value(edit, "keep", "tool_uses"), edit.get("clear_tool_inputs")
    return ClearResults(
        over_tokens=over_tokens,
        over_results=over_results,
        keep=_DEFAULT_KEEP if keep is None else keep,
        at_least=_value(edit, "clear_at_least", "input_tokens") or 0,
        spared=_names(edit.get("exclude_tools")),
        arguments=_names(inputs) if isinstance(inputs, list) else inputs is True,
    )


def _thinking_keep(keep: Any) -> int | None:
    """In how many turns thoughts stay; None: in all. As it is by default, in the newest."""
    fields = keep if isinstance(keep, dict) else {"type": keep}
    if fields.get("type") == "all":
        return None
    value = fields.get("value")
    return value if is_count(value) else 1


def _value(edit: Mapping[str, Any], name: str, kind: str) -> int | None:
    """The figure in a field of the form `{"type": kind, "value": figure}`."""
    field = edit.get(name)
    if field is None:
        return None
    value = field.get("value") if isinstance(field, dict) else None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadRequest(
            f"`{name}` must be an object with a `type` and a `value`, which is a number.",
            param=f"context_management.edits.{name}",
        )
    return value if field.get("type") == kind else None


def _names(listed: Any) -> frozenset[str]:
    return frozenset(name for name in listed if isinstance(name, str)) if isinstance(listed, list) else frozenset()

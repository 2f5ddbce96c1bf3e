"""Claude Code 2.1: all by its environment.

Told nothing of the window, it takes a model that it does not know for one of a million tokens; told the true one, it refuses
to send (`CLAUDE_CODE_MAX_CONTEXT_TOKENS` below 32k) or compacts by itself.
"""

from __future__ import annotations

from proxy.commands.launch.programs.base import NO_KEY, Place, Program, Start

_MODELS = (
    *("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"),
    *("ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL"),
    *("ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_FABLE_MODEL"),
)
"""All its tiers: there is one model."""


def _start(place: Place) -> Start:
    return Start(
        environment={
            "ANTHROPIC_BASE_URL": place.url,
            "ANTHROPIC_AUTH_TOKEN": place.key or NO_KEY,
            **dict.fromkeys(_MODELS, place.model),
            # What changes at the front of its prompts, and a countdown of a window that is not the true one.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        without=(
            *("ANTHROPIC_API_KEY", "CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_AUTO_COMPACT_WINDOW"),
            *("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
        ),
    )


CLAUDE = Program(name="claude", install="npm install -g @anthropic-ai/claude-code", start=_start)

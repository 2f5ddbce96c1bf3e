"""What a tiny model is to be like."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["walk", "echo", "gemma3", "mamba2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Everything that determines a model file, byte for byte; zeros and None mean the mode's own default."""

    mode: Mode = "walk"
    ctx: int = 131072
    """Context length that the model declares, in tokens."""
    vocab: Path | None = None
    """GGUF file whose tokenizer to use instead of an own one."""
    embd: int = 0
    layers: int = 0
    """More blocks are slower and say the same."""
    ff: int = 64
    """A wider feed-forward part is slower and says the same."""
    stop_every: int = 0
    """Walk: every so many words the reply ends; 0: never.

    One output row has to know all the words that end a reply: more than a few of them in a cycle take a wider
    `embd`, or it mistakes others for them.
    """
    order: int = 6
    """Echo: how many tokens the copying head compares (4, 6 or 8)."""
    think: bool = False
    """Whether the chat template knows `<think>` blocks."""
    tools: bool = True
    """Whether the chat template knows tools, calls and results."""
    template: Path | None = None
    """Another chat template (Jinja)."""

    @property
    def width(self) -> int:
        if self.embd:
            return self.embd
        if self.mode != "echo":
            return 128
        wanted = 20 * (self.order + 2) + 1
        return wanted + -wanted % 32

"""Models whose cache can't be moved: one with a sliding window (gemma3), one with a state (mamba2). Their weights are random.

Names and shapes are those that llama.cpp b11549 reads (`src/models/gemma3.cpp`, `src/models/mamba2.cpp`).
"""

from dataclasses import dataclass

import numpy as np

from tests.engine.gguf import Dtype, Floats, Kind, Writer

_EMBD, _FF, _HEADS, _HEAD, _LAYERS = 64, 64, 2, 32, 2
_SLIDING = 256
"""Tokens that a layer with a sliding window looks back."""
_STATE, _INNER, _CONVOLVED = 16, 128, 4

_GEMMA3 = {
    "feed_forward_length": _FF, "attention.head_count": _HEADS, "attention.head_count_kv": 1, "attention.key_length": _HEAD,
    "attention.value_length": _HEAD, "attention.sliding_window": _SLIDING,
}  # fmt: skip
_MAMBA2 = {
    "feed_forward_length": 0, "attention.head_count": 0, "ssm.conv_kernel": _CONVOLVED, "ssm.inner_size": _INNER,
    "ssm.state_size": _STATE, "ssm.time_step_rank": _HEADS, "ssm.group_count": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RandomNetwork:
    """A network of one of these kinds; what it says means nothing."""

    architecture: str
    vocab: int
    rng: np.random.Generator

    def describe(self, writer: Writer, ctx: int) -> None:
        sizes = {"context_length": ctx, "embedding_length": _EMBD, "block_count": _LAYERS}
        for key, value in (sizes | (_GEMMA3 if self.architecture == "gemma3" else _MAMBA2)).items():
            writer.put(f"{self.architecture}.{key}", Kind.U32, value)
        writer.put(f"{self.architecture}.attention.layer_norm_rms_epsilon", Kind.F32, 1e-6)

    def write(self, writer: Writer) -> None:
        self._drawn(writer, "token_embd", self.vocab, _EMBD)
        for number in range(_LAYERS):
            (self._gemma3 if self.architecture == "gemma3" else self._mamba2)(writer, f"blk.{number}.")
        _ones(writer, "output_norm.weight", _EMBD)
        if self.architecture == "mamba2":
            self._drawn(writer, "output", self.vocab, _EMBD)

    def _gemma3(self, writer: Writer, block: str) -> None:
        queries = _HEADS * _HEAD
        for name, rows, columns in (
            *(("attn_q", queries, _EMBD), ("attn_k", _HEAD, _EMBD), ("attn_v", _HEAD, _EMBD)),
            *(("attn_output", _EMBD, queries), ("ffn_gate", _FF, _EMBD), ("ffn_up", _FF, _EMBD), ("ffn_down", _EMBD, _FF)),
        ):
            self._drawn(writer, f"{block}{name}", rows, columns)
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            _ones(writer, f"{block}{name}.weight", _EMBD)
        for name in ("attn_q_norm", "attn_k_norm"):
            _ones(writer, f"{block}{name}.weight", _HEAD)

    def _mamba2(self, writer: Writer, block: str) -> None:
        wide = _INNER + 2 * _STATE
        self._drawn(writer, f"{block}ssm_in", _INNER + wide + _HEADS, _EMBD)
        self._drawn(writer, f"{block}ssm_out", _EMBD, _INNER)
        writer.tensor(f"{block}ssm_conv1d.weight", self._random(wide, _CONVOLVED))
        writer.tensor(f"{block}ssm_conv1d.bias", np.zeros(wide, np.float32))
        writer.tensor(f"{block}ssm_dt.bias", np.zeros(_HEADS, np.float32))
        writer.tensor(f"{block}ssm_a", -np.ones((_HEADS, 1), np.float32))
        _ones(writer, f"{block}ssm_d", _HEADS, 1)
        _ones(writer, f"{block}ssm_norm.weight", 1, _INNER)
        _ones(writer, f"{block}attn_norm.weight", _EMBD)

    def _drawn(self, writer: Writer, name: str, rows: int, columns: int) -> None:
        writer.tensor(f"{name}.weight", self._random(rows, columns), Dtype.F16)

    def _random(self, rows: int, columns: int) -> Floats:
        drawn: Floats = self.rng.standard_normal((rows, columns)).astype(np.float32)
        return drawn / np.float32(columns**0.5)


def _ones(writer: Writer, name: str, *shape: int) -> None:
    writer.tensor(name, np.ones(shape, np.float32))

"""The tensors of a llama-architecture model: RMSNorm, RoPE, attention, a gated feed-forward part."""

from dataclasses import dataclass

import numpy as np

from tests.engine.gguf import Dtype, Floats, Kind, Writer

SHARPNESS = 80.0
"""Logit of the intended next token; others stay below three quarters of it."""
ROPE_BASE = 1e15
"""A base so large that the slow pairs hardly turn within any context: attention regardless of distance."""

_BLOCK = (
    *(("attn_q", "q"), ("attn_k", "k"), ("attn_v", "v"), ("attn_output", "o"), ("ffn_gate", "gate"), ("ffn_up", "up")),
    ("ffn_down", "down"),
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a model; `vocab` in tokens, `head_dim` a multiple of 2."""

    vocab: int
    embd: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    rope_base: float

    def write(self, writer: Writer, ctx: int) -> None:
        entries: tuple[tuple[str, Kind, int | float], ...] = (
            ("vocab_size", Kind.U32, self.vocab), ("context_length", Kind.U32, ctx), ("embedding_length", Kind.U32, self.embd),
            ("block_count", Kind.U32, self.layers), ("feed_forward_length", Kind.U32, self.ff),
            ("attention.head_count", Kind.U32, self.heads), ("attention.head_count_kv", Kind.U32, self.kv_heads),
            ("attention.key_length", Kind.U32, self.head_dim), ("attention.value_length", Kind.U32, self.head_dim),
            ("attention.layer_norm_rms_epsilon", Kind.F32, 1e-6), ("rope.dimension_count", Kind.U32, self.head_dim),
            ("rope.freq_base", Kind.F32, self.rope_base),
        )  # fmt: skip
        for key, kind, value in entries:
            writer.put("llama." + key, kind, value)


class Network:
    """All tensors, zero until filled in. `tok` and `out` are (vocab, embd); a block maps names to tensors."""

    architecture = "llama"

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.tok = _zeros(shape.vocab, shape.embd)
        self.out = _zeros(shape.vocab, shape.embd)
        self.blocks = [self._block(shape) for _ in range(shape.layers)]

    @staticmethod
    def _block(shape: Shape) -> dict[str, Floats]:
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        return {
            "q": _zeros(queries, shape.embd), "k": _zeros(keys, shape.embd), "v": _zeros(keys, shape.embd),
            "o": _zeros(shape.embd, queries), "gate": _zeros(shape.ff, shape.embd), "up": _zeros(shape.ff, shape.embd),
            "down": _zeros(shape.embd, shape.ff),
        }  # fmt: skip

    def spend(self, rng: np.random.Generator) -> None:
        """Give the feed-forward parts real arithmetic to do; `down` is zero, so nothing comes of it."""
        for block in self.blocks:
            for name in ("gate", "up"):
                block[name][:] = rng.standard_normal(block[name].shape) / self.shape.embd**0.5

    def describe(self, writer: Writer, ctx: int) -> None:
        self.shape.write(writer, ctx)

    def write(self, writer: Writer) -> None:
        ones = np.ones(self.shape.embd, np.float32)
        writer.tensor("token_embd.weight", self.tok, Dtype.F16)
        for number, block in enumerate(self.blocks):
            for part, name in _BLOCK:
                writer.tensor(f"blk.{number}.{part}.weight", block[name], Dtype.F16)
            writer.tensor(f"blk.{number}.attn_norm.weight", ones)
            writer.tensor(f"blk.{number}.ffn_norm.weight", ones)
        writer.tensor("output_norm.weight", ones)
        writer.tensor("output.weight", self.out, Dtype.F16)


def _zeros(*shape: int) -> Floats:
    return np.zeros(shape, np.float32)


def unit_vectors(rng: np.random.Generator, count: int, dim: int, max_cos: float = 0.75) -> Floats:
    """`count` random unit vectors of `dim` numbers; of up to 20,000 no two closer than `max_cos`, if possible."""
    vectors = rng.standard_normal((count, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    if count > 20000:
        return vectors
    for row in range(1, count):
        for _ in range(50):
            if (vectors[:row] @ vectors[row]).max() <= max_cos:
                break
            fresh = rng.standard_normal(dim)
            vectors[row] = fresh / np.linalg.norm(fresh)
    return vectors

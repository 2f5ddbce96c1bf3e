"""Tiny but genuine language models, written in about a second without a download.

Nothing is trained: the weights are computed, so what a model says is known in advance and a test can check every
word. llama.cpp loads the files like any other model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tests.engine.echo import make_echo
from tests.engine.gguf import Dtype, Kind, TokenType, Writer
from tests.engine.network import Network, Shape
from tests.engine.spec import ModelSpec
from tests.engine.template import chat_template
from tests.engine.vocab import MARKS, Vocab, file_vocab, own_vocab
from tests.engine.walk import make_walk

Maker: TypeAlias = Callable[[Vocab, ModelSpec, np.random.Generator], tuple[Network, list[str]]]

_FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7}
_DTYPES = {"f32": Dtype.F32, "f16": Dtype.F16, "q8_0": Dtype.Q8_0}


def make_random(vocab: Vocab, spec: ModelSpec, rng: np.random.Generator) -> tuple[Network, list[str]]:
    """Seeded noise; only printable tokens can be produced."""
    width = spec.width
    network = Network(
        Shape(
            vocab=len(vocab.tokens),
            embd=width,
            layers=spec.layers or 2,
            heads=4,
            kv_heads=2,
            head_dim=max(16, width // 4),
            ff=spec.ff,
            rope_base=10000.0,
        )
    )
    for block in network.blocks:
        for tensor in block.values():
            tensor[:] = rng.standard_normal(tensor.shape) * (1.0 / tensor.shape[1] ** 0.5)
    network.tok[:] = rng.standard_normal(network.tok.shape)
    printable = vocab.printable()
    scale = spec.sharpness / 10 / width**0.5
    network.out[printable] = rng.standard_normal((len(printable), width)) * scale
    return network, []


MAKERS: dict[str, Maker] = {"walk": make_walk, "echo": make_echo, "random": make_random}


@dataclass(frozen=True, kw_only=True)
class Made:
    """A model before it is a file: its vocabulary, its tensors, the words of its cycle (empty unless it walks)."""

    vocab: Vocab
    network: Network
    words: list[str]
    end_of_text: int
    end_of_turn: int
    template: str


def make_model(spec: ModelSpec) -> Made:
    """Compute the model.

    Raises:
        ValueError: the vocabulary or the sizes don't allow the mode.
    """
    vocab = file_vocab(spec.vocab) if spec.vocab is not None else own_vocab(spec.vocab_size)
    end_of_text = vocab.add("<|endoftext|>", TokenType.CONTROL)
    vocab.add("<|im_start|>", TokenType.CONTROL)
    end_of_turn = vocab.add("<|im_end|>", TokenType.CONTROL)
    for tag in ("<tool_call>", "</tool_call>", "<think>", "</think>"):
        vocab.add(tag, TokenType.USER_DEFINED)
    if spec.mode == "echo":
        for number in range(MARKS):
            vocab.add(f"<|t{number}|>", TokenType.CONTROL)
        if vocab.model == "llama":
            vocab.meta["add_space_prefix"] = False  # "x" after a marker is not " x"
    network, words = MAKERS[spec.mode](vocab, spec, np.random.default_rng(spec.seed))
    return Made(
        vocab=vocab,
        network=network,
        words=words,
        end_of_text=end_of_text,
        end_of_turn=end_of_turn,
        template=_template(spec),
    )


def write_model(spec: ModelSpec, path: Path) -> list[str]:
    """Write the model's GGUF file; the words of its cycle are returned, empty unless it walks.

    Raises:
        ValueError: the vocabulary or the sizes don't allow the mode.
    """
    made = make_model(spec)
    writer = Writer()
    writer.put("general.architecture", Kind.STR, "llama")
    writer.put("general.name", Kind.STR, spec.name or f"tiny-{spec.mode}")
    writer.put("general.file_type", Kind.U32, _FILE_TYPES[spec.dtype])
    made.network.shape.write(writer, spec.ctx)
    made.vocab.write(writer, end_of_text=made.end_of_text, end_of_turn=made.end_of_turn)
    writer.put("tokenizer.chat_template", Kind.STR, made.template)
    made.network.write(writer, _DTYPES[spec.dtype])
    writer.write(path)
    return made.words


def _template(spec: ModelSpec) -> str:
    if spec.template is not None:
        return spec.template.read_text("utf-8")
    marks = spec.order if spec.mode == "echo" else 0
    return chat_template(marks=marks, think=spec.think, tools=spec.tools)


def write_words(words: list[str], path: Path) -> None:
    """The cycle of a walk model as a JSON list."""
    path.write_text(json.dumps(words), "utf-8")

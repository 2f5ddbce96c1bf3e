"""Tiny but genuine language models, written in about a second without a download.

Nothing is trained: the weights are computed, so what a model says is known in advance and a test can check every
word. llama.cpp loads the files like any other model.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.engine.echo import make_echo
from tests.engine.gguf import Kind, TokenType, Writer
from tests.engine.network import Network
from tests.engine.others import RandomNetwork
from tests.engine.spec import ModelSpec
from tests.engine.template import chat_template
from tests.engine.vocab import MARKS, Vocab, file_vocab, own_vocab
from tests.engine.walk import make_walk

VOCABULARY = 4096
"""Tokens of the vocabulary that is trained here."""
_MOSTLY_F16 = 1
"""A file's type, by ggml's numbers."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """A model before it is a file: its vocabulary, its tensors, the words of its cycle (empty unless it walks)."""

    vocab: Vocab
    network: Network | RandomNetwork
    words: list[str]
    end_of_text: int
    end_of_turn: int
    template: str


def make_model(spec: ModelSpec) -> Made:
    """Compute the model.

    Raises:
        ValueError: the vocabulary or the sizes don't allow the mode.
    """
    vocab = file_vocab(spec.vocab) if spec.vocab is not None else own_vocab(VOCABULARY)
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
    rng, network, words = np.random.default_rng(1), None, list[str]()
    if spec.mode in ("walk", "echo"):
        network, words = (make_walk if spec.mode == "walk" else make_echo)(vocab, spec, rng)
    return Made(
        vocab=vocab, network=network or RandomNetwork(spec.mode, len(vocab.tokens), rng), words=words, end_of_text=end_of_text,
        end_of_turn=end_of_turn, template=_template(spec),
    )  # fmt: skip


def write_model(spec: ModelSpec, path: Path) -> list[str]:
    """Write the model's GGUF file; the words of its cycle are returned, empty unless it walks.

    Raises:
        ValueError: the vocabulary or the sizes don't allow the mode.
    """
    made = make_model(spec)
    writer = Writer()
    writer.put("general.architecture", Kind.STR, made.network.architecture)
    writer.put("general.name", Kind.STR, f"tiny-{spec.mode}")
    writer.put("general.file_type", Kind.U32, _MOSTLY_F16)
    made.network.describe(writer, spec.ctx)
    made.vocab.write(writer, end_of_text=made.end_of_text, end_of_turn=made.end_of_turn)
    writer.put("tokenizer.chat_template", Kind.STR, made.template)
    made.network.write(writer)
    writer.write(path)
    return made.words


def _template(spec: ModelSpec) -> str:
    if spec.template is not None:
        return spec.template.read_text("utf-8")
    marks = spec.order if spec.mode == "echo" else 0
    return chat_template(marks=marks, think=spec.think, tools=spec.tools)


def write_words(words: list[str], path: Path) -> None:
    path.write_text(json.dumps(words), "utf-8")

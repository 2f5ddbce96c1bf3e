"""The tiny models as a folder in the form of the Hugging Face hub, which vLLM and transformers load.

The same numbers as in the GGUF file, under other names. llama.cpp turns pairs of neighbouring rows of queries and
keys, transformers each row with the one half a head further down: so those rows are laid out anew.
"""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from tests.engine.gguf import Floats, TokenType
from tests.engine.models import Made, make_model
from tests.engine.network import Network, Shape
from tests.engine.spec import ModelSpec

_BLOCK = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj", "gate": "mlp.gate_proj",
    "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
_UNBOUNDED = 10**30
"""What transformers writes where a tokenizer sets no limit."""


def write_folder(spec: ModelSpec, folder: Path, window: int) -> list[str]:
    """Write `config.json`, the weights and the tokenizer; the words of the model's cycle are returned.

    `window`: the length that the model declares, in tokens.

    Raises:
        ValueError: the vocabulary is none of byte pairs, or the sizes don't allow the mode.
    """
    made = make_model(spec)
    network = made.network
    assert isinstance(network, Network)
    if made.vocab.merges is None:
        raise ValueError("only a vocabulary of byte pairs has a form that transformers reads")
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _config(made, network.shape, window))
    _write_json(folder / "generation_config.json", {"do_sample": False, "eos_token_id": made.end_of_turn})
    _write_json(folder / "tokenizer.json", _tokenizer(made))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
            "chat_template": made.template, "clean_up_tokenization_spaces": False, "model_max_length": _UNBOUNDED,
        },
    )  # fmt: skip
    _write_tensors(folder / "model.safetensors", _tensors(network))
    return made.words


def _config(made: Made, shape: Shape, window: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", "vocab_size": shape.vocab,
        "hidden_size": shape.embd, "intermediate_size": shape.ff, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": shape.rope_base, "max_position_embeddings": window,
        "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": None, "eos_token_id": made.end_of_turn,
        "pad_token_id": made.end_of_text,
    }  # fmt: skip


def _tokenizer(made: Made) -> dict[str, Any]:
    """A `tokenizer.json` of the `tokenizers` library: bytes as letters, split as GPT-2's are."""
    vocab = made.vocab
    special = {TokenType.CONTROL, TokenType.USER_DEFINED}
    added = [
        {
            "id": number,
            "content": token,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            "special": vocab.types[number] == TokenType.CONTROL,
        }
        for number, token in enumerate(vocab.tokens)
        if vocab.types[number] in special
    ]
    bytelevel = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor")),
        "added_tokens": added,
        "pre_tokenizer": bytelevel,
        "decoder": bytelevel,
        "model": {
            "type": "BPE",
            **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab.index,
            "merges": vocab.merges,
        },
    }


def _tensors(network: Network) -> dict[str, Floats]:
    shape = network.shape
    ones = np.ones(shape.embd, np.float32)
    found: dict[str, Floats] = {
        "model.embed_tokens.weight": network.tok,
        "model.norm.weight": ones,
        "lm_head.weight": network.out,
    }
    for number, block in enumerate(network.blocks):
        at = f"model.layers.{number}."
        for name, place in _BLOCK.items():
            tensor = _halved(block[name], shape.head_dim) if name in {"q", "k"} else block[name]
            found[f"{at}{place}.weight"] = tensor
        found[f"{at}input_layernorm.weight"] = found[f"{at}post_attention_layernorm.weight"] = ones
    return found


def _halved(rows: Floats, head_dim: int) -> Floats:
    """Rows of each head: first the first ones of all pairs, then the second ones."""
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))


def _write_tensors(path: Path, tensors: dict[str, Floats]) -> None:
    """A safetensors file: the length of a JSON header, the header, the numbers (documentation of safetensors, "Format")."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(told)) + told)
        for tensor in tensors.values():
            file.write(tensor.astype("<f4").tobytes())


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value), "utf-8")

"""Write a tiny GGUF model: `python -m tests.engine walk.gguf --mode walk`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from tests.engine.models import MAKERS, write_model, write_words
from tests.engine.spec import ModelSpec


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Options are the fields of `ModelSpec`; what is left out keeps its default."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine", description=__doc__)
    parser.add_argument("out", type=Path, help="GGUF file to write")
    parser.add_argument("--dump-words", type=Path, metavar="FILE", help="walk: write the cycle as JSON")
    parser.add_argument("--mode", choices=tuple(MAKERS))
    parser.add_argument("--dtype", choices=("f16", "q8_0", "f32"))
    parser.add_argument("--order", type=int, choices=(4, 6, 8))
    parser.add_argument("--think", action="store_true", default=None)
    parser.add_argument("--no-tools", dest="tools", action="store_false", default=None)
    parser.add_argument("--name")
    parser.add_argument("--sharpness", type=float)
    for option in ("--vocab", "--template"):
        parser.add_argument(option, type=Path, metavar="FILE")
    for option in ("--ctx", "--vocab-size", "--embd", "--layers", "--ff", "--words", "--stop-every", "--seed"):
        parser.add_argument(option, type=int)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Write what the command line asks for."""
    options = parse(argv)
    names = {field.name for field in dataclasses.fields(ModelSpec)}
    given = {key: value for key, value in vars(options).items() if key in names and value is not None}
    try:
        words = write_model(ModelSpec(**given), options.out)
    except ValueError as error:
        sys.exit(str(error))
    if options.dump_words is not None:
        write_words(words, options.dump_words)


if __name__ == "__main__":
    main()

"""One target under atheris, with libFuzzer's options."""

import sys

import atheris

with atheris.instrument_imports(include=["proxy"]):
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()

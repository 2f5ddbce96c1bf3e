"""The diagrams in docs/, drawn from the code: `make docs` writes them, tests/test_docs.py finds those out of date."""

from __future__ import annotations

import re
from pathlib import Path

from proxy.stream.session import LEGAL, State

ARCHITECTURE = Path(__file__).parent.parent / "docs/architecture.md"
BETWEEN = re.compile(r"(?<=<!-- states: written by make docs -->\n).*?(?=<!-- end -->)", re.DOTALL)


def states() -> str:
    """The states of a streamed answer and the events that lead from one to another, in Mermaid's language."""
    events: dict[tuple[State, State], list[str]] = {}
    for (source, event), targets in LEGAL.items():
        for target in targets:
            events.setdefault((source, target), []).append(event.__name__)
    order = list(State)
    moves = sorted(events.items(), key=lambda move: [order.index(state) for state in move[0]])
    first, sources = order[0], {source for source, _ in LEGAL}
    lines = [
        f"[*] --> {first.name}",
        *(f"{source.name} --> {target.name}: {', '.join(sorted(names))}" for (source, target), names in moves),
        *(f"{state.name} --> [*]" for state in order if state not in sources),
    ]
    drawn = "\n".join(f"    {line}" for line in lines)
    return f"```mermaid\nstateDiagram-v2\n{drawn}\n```\n"


def drawn_again(text: str) -> str:
    """The document with its diagram as the code has it now."""
    return BETWEEN.sub(lambda _: states(), text)


if __name__ == "__main__":
    ARCHITECTURE.write_text(drawn_again(ARCHITECTURE.read_text()))

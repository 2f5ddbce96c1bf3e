"""The seeds that the corpora begin with: `python -m tests.fuzz.seeds` writes them."""

from __future__ import annotations

from pathlib import Path

from tests.emulation.broken import MALFORMED, REPAIRED
from tests.emulation.outputs import CLEAN
from tests.fuzz.targets import CUTS
from tests.stream.support import DONE, ending, frame, opening, said, usage

CORPUS = Path(__file__).parent / "corpus"
NOWHERE = bytes(CUTS)
EVERYWHERE = b"\xff" + bytes(CUTS - 1)
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
ANSWER = opening() + said("Hi", logprobs=None) + said(" there") + ending() + usage(3, 2) + DONE
STREAMS = (
    ANSWER,
    ANSWER.replace(b"\n\n", b"\r\n\r\n"),
    ANSWER.replace(b"\n\n", b"\r\r"),
    b": OPENROUTER PROCESSING\n\n" + ANSWER,
    b"event: x\nid: 1\nretry: 5\n" + said("a"),
    opening() + frame({"error": {"message": "prompt is too long: 9 tokens > 8", "code": 400}}),
    frame({"choices": [{"index": 0, "delta": {"tool_calls": [CALL]}}]}) + ending("tool_calls"),
    frame({"choices": [{"index": 1, "delta": {"reasoning_content": "hm"}}], "timings": {"predicted_n": 1}}),
    said("a") + ending() + said("b")[:-9],
    b"data: {\ndata: }\n\n",
)


def seeds() -> dict[str, list[bytes]]:
    """For each target the inputs to begin with."""
    texts = [row.text.encode() for row in (*CLEAN, *REPAIRED, *MALFORMED)]
    cuts = (NOWHERE, EVERYWHERE)
    return {
        "events": [c + s for c in cuts for s in STREAMS[:6]],
        "chunks": [frame_of for s in STREAMS for frame_of in s.split(b"\n\n") if frame_of][:24],
        "streams": [c + s for c in cuts for s in STREAMS],
        "calls": [NOWHERE + text for text in texts],
    }


if __name__ == "__main__":
    for target, inputs in seeds().items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(inputs):
            (folder / f"seed-{number:02}").write_bytes(data)

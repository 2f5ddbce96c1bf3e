"""Run a wheel as strangers do: `python -m tests.wheel UV WHEEL PYTHON` has `uvx` install it for a Python of its own, and talks to it."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

LISTENING = re.compile(r"Spillway listening on (http://\S+?)(?:/v1)?\s")
ASKED = {"messages": [{"role": "user", "content": "count to 20"}]}


def main(uv: str, wheel: str, python: str) -> int:
    command = [str(Path(uv).absolute()), "tool", "run", "--python", python, "--from", str(Path(wheel).absolute())]
    with tempfile.TemporaryDirectory() as elsewhere:
        assert _run([*command, "spillway", "--version"], elsewhere).startswith("spillway ")
        told = _run([*command, "spillway-proxy", "--version"], elsewhere)
        assert "COMMAND" in _run([*command, "spillway-proxy"], elsewhere)
        assert "complete" in _run([*command, "spillway-proxy", "completion", "bash"], elsewhere)
        serve = [*command, "spillway-proxy", "serve", "--port", "0"]
        alone = {**os.environ, "SPILLWAY_DISCOVER": "[]", "SPILLWAY_DEMO": "1"}  # noqa: TID251 - handed to a child process
        with subprocess.Popen(
            serve, cwd=elsewhere, env=alone, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                _talk(_url(server))
            finally:
                server.terminate()
    sys.stdout.write(f"Python {python}: {told.strip()} answers\n")
    return 0


def _run(command: list[str], place: str) -> str:
    done = subprocess.run(command, cwd=place, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr[-500:]}")
    return done.stdout


def _url(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    said = ""
    for line in server.stdout:
        said += line
        if (found := LISTENING.search(line)) is not None:
            return found[1]
    raise AssertionError(said)


def _talk(url: str) -> None:
    """What is served from files of the wheel, and an answer of the built-in model."""
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        assert "<!doctype html" in client.get("/", headers={"accept": "text/html"}).text.lower()
        answer = client.post("/v1/chat/completions", json=ASKED).json()
        assert answer["choices"][0]["message"]["content"], answer
        assert client.post("/spillway/explain", json=ASKED).status_code == 200


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""The loop that everyone writes first: no guard against anything."""

import json
from typing import Any

import httpx

from tests.e2e.clients.talk import Job, Seen, as_message, fields_of


def loop(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    """Lines that begin with `data: `, and in each of them a first choice with a content."""
    seen = Seen()
    body = {**fields_of(job), "messages": messages}
    with httpx.stream("POST", f"{job.base}/chat/completions", json=body, headers=_key(job), timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                choice = json.loads(line[6:])["choices"][0]
                if choice["finish_reason"]:
                    seen.finishes.append(choice["finish_reason"])
                elif choice["delta"]["content"]:  # llama-server says null beside the role
                    seen.text += choice["delta"]["content"]
    return seen, as_message(seen)


def frames(job: Job, messages: list[Any]) -> tuple[Seen, Any]:
    """A whole body, cut into its frames by hand."""
    seen = Seen()
    body = {**fields_of(job), "messages": messages}
    answer = httpx.post(f"{job.base}/chat/completions", json=body, headers=_key(job), timeout=60)
    for frame in answer.text.strip().split("\n\n"):
        if not frame.startswith("data: ") or frame.endswith("[DONE]"):
            continue
        choice = json.loads(frame.removeprefix("data: "))["choices"][0]
        seen.text += choice["delta"].get("content") or ""
        seen.finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
    return seen, as_message(seen)


def _key(job: Job) -> dict[str, str]:
    return {"authorization": f"Bearer {job.key}"}

"""A model that calls a tool for the weather in two towns, natively or in writing, and then says how it is."""

from tests.fakes import FakeModel, LlamaCppFake, Reply, ToolCall, scripted

MODEL = "fake-model"
TOWNS = ("Graz", "Linz")
SAID = "Sunny in both."


def asked_for_weather(*, native: bool, thought: str = "") -> LlamaCppFake:
    """A backend with that model; only one that calls natively thinks before it does."""
    calls = [ToolCall("weather", f'{{"city": "{town}"}}') for town in TOWNS]
    if native:
        first = Reply(reasoning=thought, tool_calls=calls)
    else:
        written = (f'{{"name": "{call.name}", "arguments": {call.arguments}}}' for call in calls)
        first = Reply(text="".join(f"<tool_call>{each}</tool_call>" for each in written))
    return LlamaCppFake([FakeModel(MODEL, tools=native)], brain=scripted([first, SAID]))

"""OpenAI's Responses API, used by Codex, the Agents SDK and Vercel's AI SDK.

An item is one entry of a request's input or of an answer's output: a message, reasoning, a call, a result or a compaction. A
stored response can be continued by its id, and a reference stands for a stored item. A custom tool takes plain text.
"""

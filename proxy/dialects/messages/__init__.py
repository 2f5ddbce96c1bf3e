"""Anthropic's Messages API, used by Claude Code and Anthropic's SDKs.

A block is a part of a message's content: text, thinking, a call, a result, or a compaction, which replaces the messages before
it. An edit is a client's wish to leave old results or thinking out of the history.
"""

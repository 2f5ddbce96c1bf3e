"""Anthropic's Messages API, used by Claude Code and Anthropic's SDKs."""

"""Anthropic's Messages, in which Claude Code and Anthropic's SDKs speak."""

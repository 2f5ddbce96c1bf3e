"""Bytes that are no dialect yet: JSON, server-sent events, a field spliced into a body."""

"""Dialects: the wire forms of a conversation, read into the neutral form at the edge and written there again."""

"""`spillway launch`: run a coding agent on a local model, with all it needs, and nothing of its user's changed."""

"""Answers of backends: sent for, read, gone on with and passed to clients."""

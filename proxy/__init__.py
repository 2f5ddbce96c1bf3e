"""Spillway keeps long conversations alive past a model's context window.

A window is the context length that a model has now, a prompt what is sent to it, and a history the messages that a client
sends with every request. A turn is a user's message with everything up to the next one. A compaction shortens a history, and
a checkpoint stores the result, with which later prompts begin. Recall brings back passages that a compaction took out. A job
is one request on its way through the pipeline, an attempt is one request to a backend on its behalf, and the outcome is the
record of what happened. `proxy.pipeline` has the order of these steps, and `proxy.app` puts the parts together.
"""

__version__ = "1.0.0rc1"

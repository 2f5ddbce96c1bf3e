"""Tool calls for models that have none: a protocol in the prompt, history as text, calls read back from the answer."""

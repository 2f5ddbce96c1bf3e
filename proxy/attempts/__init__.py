"""Answers of backends: requested, read, continued and passed to clients.

An attempt is one request to a backend on behalf of a client's; an answer may take several. The driver reads an answer and
feeds the stream's session; the resumer opens its further attempts. A refusal is a backend's "no", and a remedy is what is
done about it. A bound is a `max_tokens`, the client's or Spillway's own. The ledger counts tool calls written as text.
"""

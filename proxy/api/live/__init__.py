"""Routes under `/spillway/` to watch Spillway at work, and who may use them (docs/api-live.md)."""

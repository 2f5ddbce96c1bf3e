"""What is kept of the last requests so that they can be looked at: in memory only, and bounded (docs/api-live.md)."""

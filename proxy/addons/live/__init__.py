"""Recent requests, kept in memory within bounds so that they can be inspected (docs/api-live.md)."""

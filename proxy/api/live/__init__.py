"""What is looked at while Spillway works: the routes under `/spillway/`, and who may use them (docs/api-live.md)."""

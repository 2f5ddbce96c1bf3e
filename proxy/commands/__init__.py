"""Commands of `spillway`."""

"""Spillway measured side by side with a direct connection, nginx and a naive proxy, in one run."""

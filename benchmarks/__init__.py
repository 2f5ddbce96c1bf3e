"""Spillway measured side by side with a direct connection, nginx, two simple pass-throughs and LiteLLM, in one run."""

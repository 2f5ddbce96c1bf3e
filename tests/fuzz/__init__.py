"""Any bytes at all, into everything that reads bytes of a backend: `python -m tests.fuzz`."""

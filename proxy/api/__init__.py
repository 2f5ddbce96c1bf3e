"""HTTP edge: what clients call. Knows the relay, never the network behind it."""

"""The network towards the backends."""

"""The stages of the straight line that need the network or the store; `proxy.relay` strings them together."""

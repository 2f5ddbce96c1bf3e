"""The stages of the straight line that need the network or the store; `proxy.pipeline` puts them in order."""

"""Everything that can go wrong with a backend, at every point of a request, over real sockets."""

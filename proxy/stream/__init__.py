"""One streamed answer, watched, paused and resumed without I/O: events in, bytes and what to do next out."""

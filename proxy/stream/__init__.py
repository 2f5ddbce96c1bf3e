"""One streamed answer, watched, paused and resumed: events in, commands out, no I/O."""

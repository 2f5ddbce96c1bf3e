"""Pure logic: no sockets, clock, loop, log or environment. Bytes and values in, values out."""

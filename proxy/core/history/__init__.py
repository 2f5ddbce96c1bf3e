"""A conversation as a list of messages: where it may be cut, how it is recognised, and what its texts contain.

A turn is a user's message with everything up to the next one. A cut point is an index where a history may be divided
without separating a tool call from its results. A digest names a message, and a chain of digests names each prefix of a
history; a checkpoint maps such a prefix to its replacement. A mark opens or closes text that Spillway writes into
messages, such as a summary. A seal is a value that the client stores for Spillway and sends back. A rule is a sentence
in which the user lays down how things are to be done; rules survive compaction word for word.
"""

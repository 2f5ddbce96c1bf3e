"""One streamed answer, watched, paused and resumed without I/O: events in, bytes and what to do next out.

An attempt is one request to the backend; an answer may take several. The session is the state machine. Its inlet turns the
backend's bytes into pieces, its outlet turns pieces into what the client gets. The seam is where a resumed attempt meets
the text before it, and drops what it repeats. The watch holds the limits, and judges whether an answer should be paused.
Pieces are held while the client may still get something else; those after a mark in the answer can be taken back.
"""

"""The network towards the backends.

An upstream is one configured backend: its address, and how to send to it. The transport is the HTTP client under all of
them. A flow runner sends a flow's probes. A prober keeps what is known of one backend, and a known model what is known of
one of its models; a lesson is a fact learned from an answer or an error, which expires. A window request is the user's wish
that a model be loaded with a certain window.
"""

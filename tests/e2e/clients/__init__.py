"""Clients that people have, each brought to one form: two turns of a chat, and what the client read.

The modules of clients with an environment of their own run in that: `talk` needs nothing but the standard library.
"""

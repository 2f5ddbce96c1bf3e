"""API: the HTTP routes that clients, the page and the terminal call. It uses the relay, never the network to backends.

An exchange is one HTTP request and its answer. The relay answers an exchange, counts its tokens, or passes it through to a backend
unchanged. A managed path is one of a dialect, whose requests Spillway may change. A tenant is a digest of the credentials of a client;
tenants never see each other's histories. A viewer looks at conversations, with the rights of a key, of an admin key, or without keys.
"""

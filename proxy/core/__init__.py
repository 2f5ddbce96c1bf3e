"""The neutral form into which every dialect is read, and the only one that the code between client and backend knows.

A dialect is a client API: chat completions, Responses, Anthropic's messages, Ollama's chat. Its reader turns a body into
a `Request`, whose messages and options have the names of chat completions. A backend's answer arrives in frames of
server-sent events; each is read into a `Piece`, and the dialect's `Writer` turns pieces back into frames for the client.
A checkpoint (`history`) is a stored rewrite of the beginning of a conversation. Settings are one frozen value.
Everything here is pure: it reads no socket, no clock and no environment.
"""

"""Recall: bringing back passages of the covered history that the newest turn needs.

A checkpoint covers messages: they are lost to the prompt, but still in the client's request. A passage is a short message, or a piece
of a longer one. A term is a stem of a word, or an identifier. A query is the weighted terms of the newest turn; a ranking scores all
passages of a conversation for it. A passage stands out if it matches the query clearly better than the rest. A block is the text put
into the prompt with the chosen passages, in front of a user message.
"""

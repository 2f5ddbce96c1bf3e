"""Tool calls for models that have none: a protocol in the prompt, history as text, calls read back from the answer.

An offer is the set of tools of one request, and how they may be called. A form is a way in which some family of models
writes calls; it has a beginning, one or more bodies with the arguments, and an end. The scanner finds forms in the text of
an answer while it arrives, and reports spans: the part of the text with its calls, or with a fault, which is a call that
cannot be made. The reader turns pieces with such text into pieces with calls; it serves models with tools of their own,
too, when they write a call as text.
"""

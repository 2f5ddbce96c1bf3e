"""Making a conversation shorter: when, how far, by which means, and what a summary has to say.

A `ContextBudget` says at how many tokens a prompt is compacted, and to how many; a decision says whether this one is forwarded,
compacted or refused. A `Reduction` is a history that is being
shortened; a rung is one way to shorten it without a model, and a strategy is an order of rungs and summaries. The head is
the beginning that stays verbatim, the tail the newest part that does, and the block is the summary between the two, written
by a model or, as an extract, by code. Masking puts a note in place of a tool result; trimming leaves out whole turns.
"""

"""Counting tokens: CPU and disk, no network.

A family is a group of models with the same tokenizer, a vocabulary counts tokens, and a counter counts messages with one.
Where the vocabulary is not the model's own, learned ratios correct its counts, one for each script. The meter estimates a
whole prompt from all that is known; an anchor is a count that the backend reported for the beginning of a conversation.
"""

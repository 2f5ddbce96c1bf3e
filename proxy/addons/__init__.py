"""Add-ons: optional features of the pipeline, one in each file. `proxy.app` lists them.

An add-on overrides the moments of a request at which it acts (`proxy.addon.AddOn`) and observes outcomes. What several of them
use is here too: the history of recent requests, a viewer's view of it, and the sentence that sums up an outcome. Work done ahead
is compaction that runs after an answer, before the next request comes. A link is a digest in the chain over a history's messages;
a scope is whose history it is. A slot is a place in llama-server that holds one prompt; an archive holds what a client no longer sends.
"""

"""What is known of requests: events while they run, one outcome each at its end, and who reads them.

Every request keeps a journal. What happens is told to it as an event, under the request's id, and goes to all who listen:
metrics, the log, and traces where they are wanted. At its end the journal's outcome is written, once.
"""

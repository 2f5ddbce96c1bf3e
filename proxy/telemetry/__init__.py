"""Outcomes of requests, and what reads them: metrics, the log, and traces where they are wanted."""

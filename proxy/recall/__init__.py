"""Recall: what a checkpoint covers is still in the request, so what the newest turn needs of it can be brought back."""

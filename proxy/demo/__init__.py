"""A built-in backend for the first minute: a scripted model with a small window, in llama.cpp's wire shapes.

It is no language model and says so in every answer. It is there so that Spillway can be tried, and a pause
and a resume watched, on a machine where no model runs yet.
"""

"""Changes to a request that do not depend on the length of its history: cleaning, repair, and the policy's cuts.

Cleaning removes Spillway's own status text and marks from messages that clients send back. Repair changes a history that
the model's chat template or its service would refuse. A dropped field is one that the server sent with an answer and the
client did not send back. A guide is a project's instruction file that an agent pastes into the prompt. A diet shortens
the descriptions of tools.
"""

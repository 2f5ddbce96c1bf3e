"""Making a conversation shorter: when, how far, by which rung, and what a summary has to say."""

"""A conversation as messages: where it may be cut, what names its prefixes, what is said in it."""

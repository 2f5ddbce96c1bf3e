"""The neutral form: what every dialect is read into, and all that the middle of the house knows of a request."""

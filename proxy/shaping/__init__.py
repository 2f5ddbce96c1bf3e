"""Changes to a request that do not depend on its size: clean it of status, mend it, put its tools on a diet."""

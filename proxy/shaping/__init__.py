"""What is done to a request whatever its size: cleaned of status, mended, put on a diet."""

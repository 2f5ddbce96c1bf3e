"""What the command `spillway` does, one file per subcommand."""

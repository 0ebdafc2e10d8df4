"""The commands that a person types: arguments in, text and exit codes out."""

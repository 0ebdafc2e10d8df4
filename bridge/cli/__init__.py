"""What a person types: arguments in, text and exit codes out."""

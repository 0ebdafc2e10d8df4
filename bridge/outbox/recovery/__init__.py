"""What is done about a state file that is damaged."""

"""What known services want of a webhook: one file for each that wants its own body."""

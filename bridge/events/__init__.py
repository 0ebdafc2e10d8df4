"""Documents of IMDS, the transitions between them, and the CloudEvents. Pure."""

"""A local IMDS, Service Bus-compatible broker and inbox, to try and test with."""

"""A local IMDS, Service Bus-compatible broker and inbox, for trials and tests."""

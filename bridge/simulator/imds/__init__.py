"""A local IMDS."""

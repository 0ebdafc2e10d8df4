"""Builds all parts of the forwarder's process, and runs them."""

"""Demos: the forwarder at work, on one machine and without Azure."""

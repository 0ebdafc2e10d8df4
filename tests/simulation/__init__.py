"""Deterministic simulation: the forwarder on virtual time, with faults by seed."""

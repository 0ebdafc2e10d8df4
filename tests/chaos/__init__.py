"""Kills a real forwarder at random moments, and judges what it told the world."""

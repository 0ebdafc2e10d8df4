"""Presets for known services: one file for each that needs its own body."""

"""Checks of an installation: the doctor, the status, and dry runs."""

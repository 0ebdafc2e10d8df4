"""The demo is run as a process: none outlives its test."""

from tests.system.conftest import no_process_is_left

__all__ = ["no_process_is_left"]  # a fixture from elsewhere

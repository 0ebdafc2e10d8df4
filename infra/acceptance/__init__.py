"""Compares Azure with the simulator: infra/acceptance.sh runs these programs."""

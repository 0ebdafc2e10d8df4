"""Reports the state of the bridge: the health port, the page, the status table."""

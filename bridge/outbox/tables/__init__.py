"""The SQL of the state file, table by table; its functions are called by jobs."""

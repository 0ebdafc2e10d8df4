"""The SQL of the state file, table by table. Each function is a part of a job."""

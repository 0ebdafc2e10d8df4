"""How the state file is stored: SQLite, threads, the copy in memory, the schema."""

"""The state file as SQLite has it: its threads, its copy in memory, its tables."""

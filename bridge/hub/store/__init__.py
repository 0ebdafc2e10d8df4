"""What the hub keeps, in SQLite or PostgreSQL, through SQLAlchemy Core."""

"""The store of the hub: SQLite or PostgreSQL, through SQLAlchemy Core."""

"""The database: tables, engine and sessions, migrations, retention."""

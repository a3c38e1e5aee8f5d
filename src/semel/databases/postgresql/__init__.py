"""PostgreSQL, through ADBC."""

"""SQL databases: what all of them share, and a dialect for each one except PostgreSQL."""

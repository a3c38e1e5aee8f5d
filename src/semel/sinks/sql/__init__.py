"""SQL databases: what all of them share, and a dialect each of those besides PostgreSQL."""

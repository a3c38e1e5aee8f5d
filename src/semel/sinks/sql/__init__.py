"""SQL databases besides PostgreSQL: one transactional sink over a small seam, a module each."""

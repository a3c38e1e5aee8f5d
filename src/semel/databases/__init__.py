"""What sinks and sources know of SQL databases: sessions, tables, types, URLs, and what errors
mean. One module or folder per database."""

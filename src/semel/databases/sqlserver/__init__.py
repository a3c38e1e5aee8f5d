"""SQL Server, through python-tds."""

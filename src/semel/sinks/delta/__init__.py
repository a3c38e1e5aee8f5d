"""The Delta Lake sink: data files and positions in one commit of the table that holds the rows."""

"""The Iceberg sink, through PyIceberg."""

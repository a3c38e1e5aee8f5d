"""Directories, HDFS and object stores, for sinks and sources: what fsspec knows of them."""

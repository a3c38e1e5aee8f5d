"""Files in a directory, in HDFS or in an object store."""

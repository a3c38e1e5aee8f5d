"""Spark itself: its JVM and session, its Python workers' daemon, and the jars they start with."""

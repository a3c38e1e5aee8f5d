"""The direct engine beside Spark: prepares long-running tasks; a supervisor takes over."""

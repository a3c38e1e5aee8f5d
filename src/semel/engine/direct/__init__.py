"""The direct engine: long-running tasks that consume, convert and commit by themselves."""

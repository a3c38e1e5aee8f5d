"""The bounded engine: a Spark job for each trigger; tasks stage, the driver commits."""

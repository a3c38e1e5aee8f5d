"""The bounded engine: it runs one Spark job per trigger, whose tasks stage files that the driver
commits."""

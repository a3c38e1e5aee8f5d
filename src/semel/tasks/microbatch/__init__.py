"""Tasks of the micro-batch engine, and what they tell the driver."""

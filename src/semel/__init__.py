"""semel: Kafka connectors on Spark whose results and offsets can never disagree."""

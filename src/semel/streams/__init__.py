"""KStream and KTable: topologies in Kafka Streams' words, over Arrow batches."""

"""Everything that talks to Kafka: clients, cluster, groups, security, reading ranges."""

"""Sink for Elasticsearch and OpenSearch: documents by id and version, positions by
compare-and-set."""

"""The JDBC source: rows of tables or of a query, as Confluent's and Aiven's connectors read them,
without JDBC: in columns, through each database's own client.

- ``config``: the keys; ``offsets``: source partitions and offsets in Confluent's form
- ``queries``: the SQL; ``values``: columns in Kafka Connect's types; ``batches``: what is committed
  together
- ``database``: the contract of a database; one module for each
- ``source``: the connector
"""

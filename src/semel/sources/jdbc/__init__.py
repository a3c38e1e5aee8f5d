"""The JDBC source: rows of tables or of a query, as Confluent's and Aiven's connectors read them,
without JDBC: in columns, through each database's own client.

- ``config``: the keys; ``offsets``: source partitions and offsets in Confluent's form
- ``queries``: the SQL; ``batches``: values in Kafka Connect's types, and what is committed together
- ``tables``: loads in ranges, and rows that are never read
- ``database``: the contract of a database; one module for each
- ``source``: the connector
"""

"""The demonstrations: connectors in processes of their own, which are killed midway.

- ``flights``: from Kafka to PostgreSQL
- ``orders``: from PostgreSQL through Kafka to PostgreSQL, while the table changes
- ``revenue``: a topology that joins two topics, to PostgreSQL
- ``process``: what is killed
"""

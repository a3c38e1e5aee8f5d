"""JSON in columns, as Kafka Connect's JsonConverter reads and writes it.

- ``converter``: the converter. It chooses who reads: ``envelope`` if each value carries its schema,
  otherwise ``plain``
- ``text``: tells objects from other values; ``read``: parses many values at once, and finds bad
  ones
- ``columns``: the ways to write a field of each type. The type is that of a declared or expected
  column, or of ``connect_schema``, or is found in the data by ``infer``
- ``numbers``: fields that hold whole numbers and fractions, told apart
- ``merge``: one array of what was read with several schemas
- ``nested``: structs, maps and lists within a record, for sinks that have such columns
- ``write``: columns to JSON
- ``duck``: what Arrow cannot do, DuckDB does

The other formats, transforms and sinks use these modules as well. Nothing is imported here, so that
each of them loads only what it uses.
"""

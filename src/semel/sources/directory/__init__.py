"""Directory: the records of files that appear in a directory, as kafka-connect-spooldir reads them.

- ``config``: the keys; ``schemas``: ``key.schema`` and ``value.schema``
- ``places``: which files there are, and moving them; ``files``: what an offset says of one
- ``streams``: bytes, and whole records in blocks of them; ``formats``: what makes records of files,
  in ``texts`` and ``tables``; ``gathering``: records that are committed together
- ``source``: the connector
"""

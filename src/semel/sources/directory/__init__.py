"""Directory: the records of files that appear in a directory, as kafka-connect-spooldir reads them.

- ``config``: the keys; ``schemas``: ``key.schema`` and ``value.schema``
- ``places``: finds and moves files; ``files``: what an offset says about a file
- ``streams``: bytes, and whole records in blocks of them; ``formats``: turns files into records, by
  ``texts`` and ``tables``; ``gathering``: records that are committed together
- ``source``: the connector
"""

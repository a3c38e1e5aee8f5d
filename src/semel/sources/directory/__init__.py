"""Directory: the records of files that appear in a directory, as kafka-connect-spooldir reads them.

- ``config``: the keys; ``schemas``: ``key.schema`` and ``value.schema``
- ``places``: finds and moves files; ``files``: what an offset says about a file, and what its
  records say
- ``streams``: bytes, and whole records in blocks of them; ``formats``: turns files into records, by
  ``texts``, ``csvrows`` (with ``opencsv``) and ``tables``
- ``source``: the connector
"""

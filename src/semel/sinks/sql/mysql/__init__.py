"""MariaDB and MySQL, through PyMySQL.

- ``config``: the keys, and URLs as the JDBC drivers of both take them
- ``sink``: the sink; ``dialect``: sessions and SQL, which the JDBC source and stored source offsets
  use as well
- ``types`` and ``tables``: the columns of tables, and how values fit into them
- ``text``: rows as text, for LOAD DATA (``load``) or a multi-row INSERT
- ``errors``: what the servers' errors mean; ``silence``: sessions that no longer answer;
  ``claims``: whether another run is alive
"""

"""SQL Server, through python-tds.

- ``config``: the keys, and URLs as Microsoft's JDBC driver and jTDS take them
- ``sink``: the sink; ``dialect``: the SQL, which the JDBC source uses as well
- ``client``: a session; ``tls``: its encryption; ``rows``: a table as the bytes of a bulk load
- ``types``: the columns of tables, and how values fit into them
- ``errors``: what the errors of server and client mean
"""

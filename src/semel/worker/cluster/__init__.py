"""Workers that share their connectors, with no service but Kafka.

Configurations and states live in Kafka Connect's own topics, in its own format (``records``), and
every worker follows them (``store``). The workers are members of one consumer group
(``membership``). The member that owns the config topic's partition leads (``leader``): it alone
writes that topic, in transactions that fence the leader before it, and says there which worker runs
which connector. Each worker starts and stops what it is assigned (``follower``), and reports it in
the status topic. As always, ledgers and fenced producers refuse what a late worker still tries to
do.
"""

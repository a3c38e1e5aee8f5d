"""What runs beside Spark: plans a connector, starts its tasks, and carries a run to its end.

``planning/`` checks a configuration and chooses the engine; ``run.py`` carries out a plan. The
engines of sinks are ``direct.py``, ``bounded.py`` and ``microbatch/``; ``source.py`` is that of
sources. ``runtime.py`` holds many connectors on one Spark: each has a state, and can be paused,
stopped and restarted.
"""

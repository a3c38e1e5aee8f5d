class Postgres:
    pass

class Services:
    pass

"""Version 2 of the REST Proxy's API."""

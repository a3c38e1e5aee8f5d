"""Version 3 of the REST Proxy's API."""

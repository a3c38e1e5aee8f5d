"""What formats with a schema registry share: the registry's client, the wire format, and a base
class."""

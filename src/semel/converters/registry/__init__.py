"""Formats whose schemas are in a registry: the registry, its wire format, and what converters of
such formats share."""

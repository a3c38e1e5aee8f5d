"""The ground: facts as frozen dataclasses, and functions that know no store, format or engine."""

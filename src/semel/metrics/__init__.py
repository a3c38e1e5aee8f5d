"""What connectors do, in numbers, as Prometheus reads them."""

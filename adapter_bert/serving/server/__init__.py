"""The HTTP server of a bank: queue, protocols, tenants, limits, page. Needs `pip install -e .[serve]`."""

"""Other engines, read through their Prometheus pages: fetching, parsing, and what a page says of which engine."""

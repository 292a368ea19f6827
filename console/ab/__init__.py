"""`arc ab`: an A/B experiment with a live flag on the traffic that an engine serves."""

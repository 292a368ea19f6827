"""Step records, counters and histograms."""

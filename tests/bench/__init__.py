"""`make bench`: speeds of a real `arc serve` over HTTP. Prints figures; asserts nothing about time."""

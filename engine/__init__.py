"""The serving process of arc."""

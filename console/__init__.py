"""The terminal side of arc: the command line and the console. Never imports torch."""

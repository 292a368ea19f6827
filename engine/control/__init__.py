"""The control socket: protocol, server, flight recorder."""

"""The engine thread: inbox, step loop, runner, and the handle that the API holds."""

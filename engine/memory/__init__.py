"""The bounded allocator: where a step's large buffers get their memory, and how much of it is held at most."""

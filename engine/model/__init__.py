"""Reading a checkpoint and running its forward pass."""

"""The model that the repository carries, and the script that trained it."""

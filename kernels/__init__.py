"""Operations behind one seam: operation, backend, refusal. Imports nothing of the project."""

"""`arc bench`: a load generator and the experiments that run on it. Only plots to PNG need arc-console[bench]."""

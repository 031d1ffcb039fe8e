"""Room 3: a closed turn in, a verdict out."""

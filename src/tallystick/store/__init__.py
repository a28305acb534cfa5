"""Where committed transitions are kept: one contract, one SQL text, one module per database."""

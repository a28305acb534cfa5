"""Pure: values, definitions and rules. No clock, I/O, randomness, threads, logging or async."""

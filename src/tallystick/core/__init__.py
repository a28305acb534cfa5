"""The pure part: values, definitions, the ledger and its rules. No clock, no I/O, no chance."""

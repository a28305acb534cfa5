"""What an operation is performed by, and asked about afterwards; one module for each kind."""

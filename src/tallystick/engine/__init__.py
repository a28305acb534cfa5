"""What owns runs: it decides with the core, commits to the store, and acts after the commit."""

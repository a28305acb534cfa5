"""The outside world of the crash tests: what happened is on disk before anybody says so."""

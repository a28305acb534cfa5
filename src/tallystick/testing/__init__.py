"""What tests of workflows and of executors are built from; shipped with the package."""

"""Tests of the stores: the contract, each store, and what a disk may do to them."""

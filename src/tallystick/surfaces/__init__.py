"""What people and programs touch; all of it reaches the engine through `client`."""

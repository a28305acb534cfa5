"""What a step costs, beside the least that it could cost on the same disk at the same moment."""

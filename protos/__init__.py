"""What both ends of a wire agree on: records, tokens, seeds, metrics and errors (numpy, never torch)."""

"""Terms of the loss, one file each, pure."""

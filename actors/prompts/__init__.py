"""Prompts, one file each: how an episode becomes token ids, and replies become commands."""

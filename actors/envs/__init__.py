"""Environments, one plug-in each: see `actors.core.load_environment`."""

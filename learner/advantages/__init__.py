"""Advantage estimators, one file each, pure numpy."""

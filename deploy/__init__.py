"""The CLI `tandem`, run configs and the launchers."""

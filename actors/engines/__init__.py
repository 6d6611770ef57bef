"""Engines that sample replies: `transformers` in process."""

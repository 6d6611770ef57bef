"""Tables, sampler, limiter and store: what waits between acting and learning (no torch)."""

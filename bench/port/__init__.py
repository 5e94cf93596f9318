"""A straight port of the design this library comes from: one statement per row, the whole graph loaded, waits that poll."""

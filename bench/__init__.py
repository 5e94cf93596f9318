"""Measurements. Each writes its numbers to `bench/results`, from where the documentation takes them."""

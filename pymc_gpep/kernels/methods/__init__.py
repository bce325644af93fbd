"""Sweeps of single methods: the update of the sites of every point."""

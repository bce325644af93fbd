"""Draws that samplers need in an inner loop."""

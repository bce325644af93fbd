"""What a sweep of one method does at every point."""

"""The documented installations: followed from their pages, and installed from nothing."""

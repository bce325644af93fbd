"""The experiments of Nickisch and Rasmussen (2008), section 12, one module each."""

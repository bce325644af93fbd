"""The experiments of Girolami and Rogers (2006), section 6, one module each."""

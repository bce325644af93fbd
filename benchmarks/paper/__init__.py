"""The experiments of Riihimäki, Jylänki and Vehtari (2013), section 5, one module each."""

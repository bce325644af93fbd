"""How a row gets its site when it is included, one file each, and their registry."""

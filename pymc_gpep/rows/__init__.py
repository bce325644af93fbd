"""Rows of data (inputs and labels), in memory or in files that are read chunk by chunk.

rows: the protocol of rows, reading in chunks, and errors for invalid rows
in_memory: rows that are arrays in memory
storage: `gpep.open_rows`, and kinds of storage: HDF5, Dask, memory maps, Parquet, Zarr
fingerprint: checksum of the rows, stored in the file of a fit
"""

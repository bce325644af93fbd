"""Rows of data, in memory or read chunk by chunk.

rows: the contract of rows, reading in chunks, and errors that name a row
in_memory: rows that are arrays in memory
storage: `gpep.open_rows`, and kinds of storage: HDF5, Dask, memory maps, Parquet, Zarr
fingerprint: checksum of the rows, for files of a fit
"""

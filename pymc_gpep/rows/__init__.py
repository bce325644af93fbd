"""Rows of data, in memory or read chunk by chunk.

rows: the contract of rows, and errors that name a row
in_memory: rows that are arrays in memory
stored_rows: the contract of rows in storage
storage: kinds of storage: HDF5, Dask, memory maps, Parquet, Zarr
chunks: column deviations and random samples, read in chunks
fingerprint: digest of the rows, for files of a fit
open_rows: `gpep.open_rows`: rows from the data that a user passes
"""

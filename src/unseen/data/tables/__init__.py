"""Tables in CSV and Parquet files: read, loaded, encoded with statistics of the sources."""

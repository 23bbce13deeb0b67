"""The log in Spark: a data source and sink without a jar, and the pipelines built on them."""

"""The slate store: OpenData-Queue's records in SlateDB, in a folder or in a bucket."""

"""The slate store: queues as OpenData-Queue's records in a SlateDB database, in a folder or in a bucket."""

"""Amazon SQS: the server speaks its two protocols, in front of every store."""

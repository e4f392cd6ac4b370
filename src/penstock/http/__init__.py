"""Operations over HTTP: the server, the client, and the encoding of batch plans, which both use."""

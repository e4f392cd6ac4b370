"""Operations over HTTP: server, client, and what both agree on."""

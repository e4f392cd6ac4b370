"""What travels between a server and its clients, as pure functions of bytes and JSON that both sides share."""

"""The folder store: one file per message, moved between folders. See layout.py and docs/folder.md."""

"""A booking desk of the airline domain's shape: a database, tools that read and write it, and a scripted user."""

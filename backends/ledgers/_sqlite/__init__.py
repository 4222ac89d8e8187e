"""The ledger in a SQLite file: its form, who may write it, and the thread that does."""

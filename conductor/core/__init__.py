"""Pure, synchronous state. No ``await`` can come between reading and writing it, so it needs no locks."""

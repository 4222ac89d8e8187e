"""The path of the data: admit -> rollout -> reward -> batch -> train -> publish.

Each stage says what it consumes, what it waits for and what it produces. Lease and dispatch ids go
through bounded streams; the lease table is the truth. End of stream means finish, cancellation means abort.
Who starts a stage (``RunContext.start_stage``) closes its ends of the streams when it ends.
"""

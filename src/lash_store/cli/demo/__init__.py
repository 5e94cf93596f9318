"""`lash-store demo`: a real agent loop whose workers are killed, and a second look at everything it claims.

model    the scripted model and its tools: pure functions, no store
agent    one turn: claim, think, commit. What you would write yourself
worker   an operating system process that serves turns until it is killed
crew     starts workers, hears them, and kills them
story    the acts, and the ledger of what was acknowledged
rows     raw rows of both engines, without the library
verify   every claim, checked against raw rows in a process of its own
ending   the tree, the usage and the timeline, from the database
show     a terminal, plain lines, or JSON
"""

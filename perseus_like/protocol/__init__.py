"""The protocols between the launcher, the state agents and the processes of a job: messages, variables, handshakes.

Each module needs the standard library only, and no other package of perseus_like. Programs that are started by their
path, without the package, import these modules by their folder.
"""

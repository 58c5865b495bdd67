"""What to do about each kind of failure of a Redis server, in a sentence that names the setting.

Owns the words. Whether it is tried again is ``redislog``'s business.
"""

from __future__ import annotations

from gpu_admission.shared.redisaddress import ENCODE, RedisAddress


def advice(error: Exception, address: RedisAddress) -> str:
    """What the reader of ``error`` should change."""
    from redis.exceptions import (
        AuthenticationError,
        AuthorizationError,
        ClusterError,
        MovedError,
        NoPermissionError,
        OutOfMemoryError,
        ReadOnlyError,
    )

    keys = address.key("*")
    if isinstance(error, (AuthenticationError, AuthorizationError, NoPermissionError)):
        return (
            "write user and password into shared=, as in redis://user:password@host/0?name=gpu0, of one who "
            f"may run INFO and use the keys {keys}; {ENCODE}"
        )
    if isinstance(error, OutOfMemoryError):
        return "raise the server's maxmemory, or name another server in shared="
    if isinstance(error, ReadOnlyError):
        return "name the master in shared=, which takes writes, not a replica"
    if "WRONGTYPE" in str(error):
        return f"something else uses the keys {keys}: delete these keys, or write another name= into shared="
    if "DB index" in str(error):
        return (
            "write the number of a database that the server has into shared=, as in redis://host/0?name=gpu0"
        )
    if isinstance(error, (ClusterError, MovedError)) or "cluster" in str(error) or "slot" in str(error):
        return (
            f"in a cluster, name the node that has the keys {keys} in shared=, with database 0, as in "
            "redis://host/0?name=gpu0; moved to another node, they are not followed"
        )
    if "max number of clients" in str(error):
        return "raise the server's maxclients: each process of the budget takes two"
    return "see that shared= names a Redis server that is up and takes writes"

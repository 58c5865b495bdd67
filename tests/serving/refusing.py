"""``examples.drain`` for a balancer that sends what is refused to another host: SIGTERM refuses the queue."""

from functools import partial

from examples import drain

drain.drain_at_sigterm = partial(drain.drain_at_sigterm, waiting="refuse")
app = drain.app

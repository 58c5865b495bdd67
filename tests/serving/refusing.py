"""``examples.drain`` for a balancer that sends what is refused to another host: SIGTERM refuses the queue."""

from functools import partial

from examples import drain
from gpu_admission.serving import drain_at_sigterm

vars(drain)["drain_at_sigterm"] = partial(drain_at_sigterm, waiting="refuse")
app = drain.app

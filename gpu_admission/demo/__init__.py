"""``gpu-admission demo``: a real torch model behind a hard memory wall, and real traffic.

From the command inwards: ``command`` (options), ``rounds`` (the order of things), ``calibrate``
and ``load`` (the client's side), ``server``, ``app``, ``engine``, ``model`` and ``wall`` (the
server process), ``figures``, ``report`` and ``page`` (what comes out). Nothing of the package
imports the demo, and it uses nothing of the package that another program could not.
"""

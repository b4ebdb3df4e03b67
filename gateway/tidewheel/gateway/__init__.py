"""The data plane: OpenAI-style requests in, tokens out.

From the wire inwards: ``server`` (client connections) feeds ``requests`` (HTTP/1.1 parsing with limits) to ``api``
(routes of the data port), which starts one ``exchange`` per inference request. An exchange asks ``routing`` for a
version and a replica, sends the request through ``upstream``, and passes the answer on through ``relay``. What routing
knows comes as a ``snapshot`` from ``discovery`` (Kubernetes), ``lastgood`` (disk) or ``static`` (a file).
"""

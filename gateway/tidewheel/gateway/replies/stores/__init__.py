"""Where replies are kept beside the memory of the gateway that writes them, so that every gateway can show them.

``redis_store`` talks to Redis or Valkey; ``codec`` is the form of what lies there, ``scripts`` what runs inside;
``sharing`` decides when to write, to follow, and to take over.
"""

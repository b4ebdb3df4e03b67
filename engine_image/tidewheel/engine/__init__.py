"""One replica: continuous batching behind an OpenAI server.

The life of a request:

1. `api` reads the body, `schema` checks it, `service` tokenizes the prompt and asks the scheduler whether it can fit.
2. `service` opens a `Reply` (one `Request` per choice) and puts the requests into the `engine`'s inbox.
3. The loop in `engine`, a thread of its own, turns: `scheduler` admits from the `lanes` and hands out the token budget,
   `blocks` finds cached prefixes and lends KV blocks, the runner computes, the scheduler books what was sampled.
4. Each step's outputs cross to the event loop in one call. `replies` turns tokens into text (`text`: whole
   characters, no stop strings), `responses` writes it in OpenAI's shapes (`openai`).
5. The request ends by itself, by a stop string, an abort, a client that left, or an error; its blocks go back at
   once, and its full ones stay findable until something else needs them.

Nothing above the runner knows torch: `simulated` runs the same scheduler, blocks and server without a model.
"""

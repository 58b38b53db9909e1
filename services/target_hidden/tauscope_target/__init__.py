"""The tauscope target service: hidden layers of a large model over HTTP."""

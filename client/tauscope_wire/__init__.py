"""The wire contract of tauscope: messages, tensor bodies, errors and the fast HTTP transport.

The authority is SPEC.md beside this file. Below all other packages: imports numpy, msgpack, pydantic, xxhash, ml_dtypes
and httpx, nothing of tauscope.
"""

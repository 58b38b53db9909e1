"""The tauscope drafter service: drafts for many anchors at once over HTTP."""

"""Arithmetic that several families share: norms, rotary embedding, attention of many anchors over one context."""

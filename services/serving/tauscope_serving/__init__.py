"""What both tauscope services share over HTTP. Never imports torch."""
